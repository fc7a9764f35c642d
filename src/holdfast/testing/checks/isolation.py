"""What a sink leaves alone: the work of other pipelines, other sinks, other drivers.

Each check prepares a checkpoint, lets the other one recover while nothing is decided yet, and then decides: all rows
must be there. Work that the other one undid is work lost.
"""

from __future__ import annotations

from holdfast.checkpoint.ports import SubtaskReport
from holdfast.core.model import Committable
from holdfast.errors import FencedError, LineageError
from holdfast.testing.context import CheckContext, require


def other_pipelines_are_left_alone(context: CheckContext) -> None:
    """`recover` touches no work of a pipeline with another name, however alike the names are (T4)."""
    for ours, theirs in (("{}", "{}-1"), ("{}-1", "{}"), ("{}", "{}.é"), ("a-{}", "a.2d{}")):
        query = context.query()
        name = query.pipeline
        query.pipeline = ours.format(name)
        other, rows, more = context.query(theirs.format(name)), context.rows(), context.rows()
        run = context.start(query)

        def meanwhile(_: list[SubtaskReport], other=other, more=more) -> None:  # type: ignore[no-untyped-def]
            second = context.start(other)
            second.run(0, context.batch(more))
            second.close()

        run.run(0, context.batch(rows, prepared=meanwhile))
        run.close()
        when = f"pipeline {other.pipeline!r} recovered while {query.pipeline!r} had prepared"
        context.expect(rows, when)
        context.settle(query, rows)
        context.settle(other, more)


def other_locations_are_left_alone(context: CheckContext) -> None:
    """`recover` touches no work of a pipeline of the same name with another checkpoint location (T4, rule 10)."""
    query, rows = context.query(), context.rows()
    twin = context.query(query.pipeline)
    run = context.start(query)

    def meanwhile(_: list[SubtaskReport]) -> None:
        try:
            context.start(twin).close()
        except LineageError:
            return  # refused before it touched anything, which is right too

    run.run(0, context.batch(rows, prepared=meanwhile))
    run.close()
    context.expect(rows, "a pipeline of the same name and another checkpoint location recovered meanwhile")
    context.settle(query, rows)


def other_sinks_are_left_alone(context: CheckContext) -> None:
    """`recover` touches no work of another sink of the same pipeline at the same endpoint (T4, T8)."""
    query, rows = context.query(), context.rows()
    run = context.start(query)

    def meanwhile(_: list[SubtaskReport]) -> None:
        other = context.make_sink()
        other.name = f"{other.name}-2"[-100:]
        other.open(run.info)
        other.recover(query.pipeline, run.info.generation, {})
        other.close()

    run.run(0, context.batch(rows, prepared=meanwhile))
    run.close()
    context.expect(rows, "another sink of the pipeline recovered meanwhile")
    context.settle(query, rows)


def newer_generations_are_left_alone(context: CheckContext) -> None:
    """`recover` of a paused older driver touches no work of a newer one (T4, rule 2)."""
    query, rows, more = context.query(), context.rows(), context.rows()
    old = context.start(query)
    old.run(0, context.batch(rows))
    new = context.start(query)

    def meanwhile(_: list[SubtaskReport]) -> None:
        old.sinks[0].recover(query.pipeline, old.info.generation, {})

    new.run(1, context.batch(more, prepared=meanwhile))
    new.close()
    context.expect(rows + more, "a paused older driver recovered meanwhile")
    context.settle(query, rows + more)


def late_task_is_swept(context: CheckContext) -> None:
    """A task of a dead driver prepares after its successor started: the next batch undoes it (rule 8, T4)."""
    query, rows, more = context.query(), context.rows(), context.rows()
    old = context.start(query)
    old.run(0, context.batch(rows))
    new = context.start(query)
    late: list[Committable] = []
    for report in context.batch(more).write(old.info, old.sinks, 1, 0):
        late += report.committables

    def look(_: list[SubtaskReport]) -> None:
        context.expect_undone(new.info, 1, late, "a late task of a dead driver prepared, and the next batch began")

    new.run(1, context.batch(more, prepared=look))
    new.deliver()
    context.expect(rows + more, "after the batch that followed a late task")
    context.expect_clean(query, "after the batch that followed a late task")
    new.close()
    context.settle(query, rows + more)


def late_task_cannot_touch_newer_work(context: CheckContext) -> None:
    """A task of a dead driver writes the checkpoint its successor has just prepared: they never meet (rule 2, P4)."""
    query, rows, more = context.query(), context.rows(), context.rows()
    old = context.start(query)
    new = context.start(query)

    def meanwhile(_: list[SubtaskReport]) -> None:
        context.batch(rows, 3).write(old.info, old.sinks, 0, 0)

    new.run(0, context.batch(rows, 2, prepared=meanwhile))
    new.deliver()
    context.expect(rows, "a late task of a dead driver wrote the same checkpoint meanwhile")
    new.run(1, context.batch(more))
    new.deliver()
    context.expect_clean(query, "after the next batch")
    new.close()
    context.settle(query, rows + more)


def paused_driver_changes_nothing(context: CheckContext) -> None:
    """A paused driver wakes after its successor delivered the checkpoint: it can neither decide nor undo (rule 1)."""
    query, rows, more = context.query(), context.rows(), context.rows()
    old = context.start(query)

    def meanwhile(_: list[SubtaskReport]) -> None:
        new = context.start(query)
        new.run(0, context.batch(rows, 3))
        new.deliver()
        new.close()

    fenced = False
    try:
        old.run(0, context.batch(rows, 2, prepared=meanwhile))
    except FencedError:
        fenced = True
    require(fenced, "the paused driver was not stopped by the fence")
    context.expect(rows, "a paused driver woke up after its successor had delivered")
    run = context.start(query)
    run.run(1, context.batch(more))
    run.close()
    context.settle(query, rows + more)
