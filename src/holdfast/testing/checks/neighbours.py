"""What a sink leaves alone: the work of other pipelines, other sinks, other drivers.

Each check prepares a checkpoint, lets the other one recover while nothing is decided yet, and then decides: all rows
must be there. Work that the other one undid is work lost.
"""

from __future__ import annotations

from holdfast.checkpoint.ports import SubtaskReport
from holdfast.core.model import Committable
from holdfast.errors import FencedError, LineageError
from holdfast.testing.bench import Bench, require


def other_pipelines_are_left_alone(bench: Bench) -> None:
    """`recover` touches no work of a pipeline with another name, however alike the names are (T4)."""
    for ours, theirs in (("{}", "{}-1"), ("{}-1", "{}"), ("{}", "{}.é"), ("a-{}", "a.2d{}")):
        query = bench.query()
        name = query.pipeline
        query.pipeline = ours.format(name)
        other, rows, more = bench.query(theirs.format(name)), bench.rows(), bench.rows()
        run = bench.start(query)

        def meanwhile(_: list[SubtaskReport], other=other, more=more) -> None:  # type: ignore[no-untyped-def]
            second = bench.start(other)
            second.run(0, bench.batch(more))
            second.close()

        run.run(0, bench.batch(rows, prepared=meanwhile))
        run.close()
        when = f"pipeline {other.pipeline!r} recovered while {query.pipeline!r} had prepared"
        bench.expect(rows, when)
        bench.settle(query, rows)
        bench.settle(other, more)


def other_locations_are_left_alone(bench: Bench) -> None:
    """`recover` touches no work of a pipeline of the same name with another checkpoint location (T4, rule 10)."""
    query, rows = bench.query(), bench.rows()
    twin = bench.query(query.pipeline)
    run = bench.start(query)

    def meanwhile(_: list[SubtaskReport]) -> None:
        try:
            bench.start(twin).close()
        except LineageError:
            return  # refused before it touched anything, which is right too

    run.run(0, bench.batch(rows, prepared=meanwhile))
    run.close()
    bench.expect(rows, "a pipeline of the same name and another checkpoint location recovered meanwhile")
    bench.settle(query, rows)


def other_sinks_are_left_alone(bench: Bench) -> None:
    """`recover` touches no work of another sink of the same pipeline at the same endpoint (T4, T8)."""
    query, rows = bench.query(), bench.rows()
    run = bench.start(query)

    def meanwhile(_: list[SubtaskReport]) -> None:
        other = bench.make_sink()
        other.name = f"{other.name}-2"[-100:]
        other.open(run.info)
        other.recover(query.pipeline, run.info.generation, {})
        other.close()

    run.run(0, bench.batch(rows, prepared=meanwhile))
    run.close()
    bench.expect(rows, "another sink of the pipeline recovered meanwhile")
    bench.settle(query, rows)


def newer_generations_are_left_alone(bench: Bench) -> None:
    """`recover` of a paused older driver touches no work of a newer one (T4, rule 2)."""
    query, rows, more = bench.query(), bench.rows(), bench.rows()
    old = bench.start(query)
    old.run(0, bench.batch(rows))
    new = bench.start(query)

    def meanwhile(_: list[SubtaskReport]) -> None:
        old.sinks[0].recover(query.pipeline, old.info.generation, {})

    new.run(1, bench.batch(more, prepared=meanwhile))
    new.close()
    bench.expect(rows + more, "a paused older driver recovered meanwhile")
    bench.settle(query, rows + more)


def late_task_is_swept(bench: Bench) -> None:
    """A task of a dead driver prepares after its successor started: the next batch undoes it (rule 8, T4)."""
    query, rows, more = bench.query(), bench.rows(), bench.rows()
    old = bench.start(query)
    old.run(0, bench.batch(rows))
    new = bench.start(query)
    late: list[Committable] = []
    for report in bench.batch(more).write(old.info, old.sinks, 1, 0):
        late += report.committables

    def look(_: list[SubtaskReport]) -> None:
        bench.expect_undone(new.info, 1, late, "a late task of a dead driver prepared, and the next batch began")

    new.run(1, bench.batch(more, prepared=look))
    new.deliver()
    bench.expect(rows + more, "after the batch that followed a late task")
    bench.expect_clean(query, "after the batch that followed a late task")
    new.close()
    bench.settle(query, rows + more)


def late_task_cannot_touch_newer_work(bench: Bench) -> None:
    """A task of a dead driver writes the checkpoint its successor has just prepared: they never meet (rule 2, P4)."""
    query, rows, more = bench.query(), bench.rows(), bench.rows()
    old = bench.start(query)
    new = bench.start(query)

    def meanwhile(_: list[SubtaskReport]) -> None:
        bench.batch(rows, 3).write(old.info, old.sinks, 0, 0)

    new.run(0, bench.batch(rows, 2, prepared=meanwhile))
    new.deliver()
    bench.expect(rows, "a late task of a dead driver wrote the same checkpoint meanwhile")
    new.run(1, bench.batch(more))
    new.deliver()
    bench.expect_clean(query, "after the next batch")
    new.close()
    bench.settle(query, rows + more)


def paused_driver_changes_nothing(bench: Bench) -> None:
    """A paused driver wakes after its successor delivered the checkpoint: it can neither decide nor undo (rule 1)."""
    query, rows, more = bench.query(), bench.rows(), bench.rows()
    old = bench.start(query)

    def meanwhile(_: list[SubtaskReport]) -> None:
        new = bench.start(query)
        new.run(0, bench.batch(rows, 3))
        new.deliver()
        new.close()

    fenced = False
    try:
        old.run(0, bench.batch(rows, 2, prepared=meanwhile))
    except FencedError:
        fenced = True
    require(fenced, "the paused driver was not stopped by the fence")
    bench.expect(rows, "a paused driver woke up after its successor had delivered")
    run = bench.start(query)
    run.run(1, bench.batch(more))
    run.close()
    bench.settle(query, rows + more)
