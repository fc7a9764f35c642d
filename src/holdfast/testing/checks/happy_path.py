"""What a sink does when all goes well."""

from __future__ import annotations

import json

from holdfast.checkpoint.ports import SubtaskReport
from holdfast.testing.context import CheckContext, NotApplicable, require
from holdfast.testing.local import pickled_copy


def same_name_after_restart(context: CheckContext) -> None:
    """A sink has the same name whenever it is made: records and ledgers know it by that (C5)."""
    first, second = context.make_sink().name, context.make_sink().name
    require(first == second, f"make_sink() gave a sink named {first!r}, then one named {second!r}")


def can_be_pickled(context: CheckContext) -> None:
    """A sink holds configuration, never connections: it can be pickled when new, in use, and after use (T1)."""
    sink, query, rows = context.make_sink(), context.query(), context.rows()
    moments: dict[str, Exception] = {}

    def copy(moment: str) -> None:
        try:
            name = pickled_copy(sink).name
        except Exception as error:  # noqa: BLE001  pickle raises what it likes
            moments[moment] = error
        else:
            require(name == sink.name, f"{moment}, the copy of sink {sink.name!r} is named {name!r}")

    copy("when new")
    if not moments:
        run = query.start([sink])
        copy("in use")
        if not moments:
            run.run(0, context.batch(rows))
            copy("after its first checkpoint")
        run.close()
        copy("after close()")
    for moment, error in moments.items():
        raise AssertionError(f"{moment}, the sink cannot be pickled: {type(error).__name__}: {error}") from error


def committables_are_plain_data(context: CheckContext) -> None:
    """pre_commit returns a dict that JSON leaves unchanged, or None (T1)."""
    run = context.start(context.query())
    try:
        reports = context.batch(context.rows()).write(run.info, run.sinks, 0, 0)
    finally:
        run.sinks[0].recover(run.info.pipeline, run.info.generation, {})
        run.close()
    for committable in (c for report in reports for c in report.committables):
        require(isinstance(committable.data, dict), f"pre_commit returned {committable.data!r}")
        require(json.loads(json.dumps(committable.data)) == committable.data, f"JSON changes {committable.data!r}")


def empty_batch(context: CheckContext) -> None:
    """A batch without rows, or without partitions, opens nothing and completes (P7)."""
    query, rows = context.query(), context.rows(1)
    before = len(list(context.read_rows()))
    run = context.start(query)

    def nothing_prepared(reports: list[SubtaskReport]) -> None:
        count = sum(len(report.committables) for report in reports)
        require(count == 0, f"{count} transactions were opened for a batch without rows")

    run.run(0, context.batch([], 3, prepared=nothing_prepared))
    run.run(1, context.batch([], 0, prepared=nothing_prepared))
    found = len(list(context.read_rows()))
    require(found == before, f"{found - before} rows appeared that were never sent")
    run.run(2, context.batch(rows, 3))
    run.close()
    context.settle(query, rows)


def several_checkpoints_and_subtasks(context: CheckContext) -> None:
    """Rows of several checkpoints, each of several subtasks, are all there when their batch returns (T1, T2)."""
    query, sent = context.query(), []
    run = context.start(query)
    for checkpoint_id, partitions in enumerate((3, 1, 4)):
        sent += (rows := context.rows(5))
        run.run(checkpoint_id, context.batch(rows, partitions))
        run.deliver()
        context.expect(sent, f"after checkpoint {checkpoint_id} with {partitions} subtasks")
    run.close()
    context.settle(query, sent)


def values_survive(context: CheckContext) -> None:
    """Nulls, empty text, quotes, line ends and letters beyond ASCII come out as they went in (P2, T1)."""
    query, rows = context.query(), context.rows(24)
    run = context.start(query)
    run.run(0, context.batch(rows, 1))
    run.deliver()
    run.close()
    context.expect(rows, "after one checkpoint")


def invisible_before_the_decision(context: CheckContext) -> None:
    """Until the decision record is durable, a reader sees nothing of a checkpoint (T2, W2)."""
    if not context.exactly_once:
        raise NotApplicable(f"a sink that is {context.guarantee} may show rows early")
    query, rows = context.query(), context.rows()
    run = context.start(query)

    def look(_: list[SubtaskReport]) -> None:
        context.expect_nothing(rows, "all tasks have prepared and nothing is decided")

    run.run(0, context.batch(rows, prepared=look))
    run.close()
    context.settle(query, rows)
