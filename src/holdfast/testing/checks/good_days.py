"""What a sink does when all goes well."""

from __future__ import annotations

import json

from holdfast.checkpoint.ports import SubtaskReport
from holdfast.testing.bench import Bench, NotApplicable, require
from holdfast.testing.local import travel


def same_name_after_restart(bench: Bench) -> None:
    """A sink has the same name whenever it is made: records and ledgers know it by that (C5)."""
    first, second = bench.make_sink().name, bench.make_sink().name
    require(first == second, f"make_sink() gave a sink named {first!r}, then one named {second!r}")


def can_be_pickled(bench: Bench) -> None:
    """A sink holds configuration, never connections: it can be pickled when new, in use, and after use (T1)."""
    sink, query, rows = bench.make_sink(), bench.query(), bench.rows()
    moments: dict[str, Exception] = {}

    def copy(moment: str) -> None:
        try:
            name = travel(sink).name
        except Exception as error:  # noqa: BLE001  pickle raises what it likes
            moments[moment] = error
        else:
            require(name == sink.name, f"{moment}, the copy of sink {sink.name!r} is named {name!r}")

    copy("when new")
    if not moments:
        run = query.start([sink])
        copy("in use")
        if not moments:
            run.run(0, bench.batch(rows))
            copy("after its first checkpoint")
        run.close()
        copy("after close()")
    for moment, error in moments.items():
        raise AssertionError(f"{moment}, the sink cannot be pickled: {type(error).__name__}: {error}") from error


def committables_are_plain_data(bench: Bench) -> None:
    """pre_commit returns a dict that JSON leaves unchanged, or None (T1)."""
    run = bench.start(bench.query())
    try:
        reports = bench.batch(bench.rows()).write(run.info, run.sinks, 0, 0)
    finally:
        run.sinks[0].recover(run.info.pipeline, run.info.generation, {})
        run.close()
    for committable in (c for report in reports for c in report.committables):
        require(isinstance(committable.data, dict), f"pre_commit returned {committable.data!r}")
        require(json.loads(json.dumps(committable.data)) == committable.data, f"JSON changes {committable.data!r}")


def empty_batch(bench: Bench) -> None:
    """A batch without rows, or without partitions, opens nothing and completes (P7)."""
    query, rows = bench.query(), bench.rows(1)
    before = len(list(bench.read_rows()))
    run = bench.start(query)

    def nothing_prepared(reports: list[SubtaskReport]) -> None:
        count = sum(len(report.committables) for report in reports)
        require(count == 0, f"{count} transactions were opened for a batch without rows")

    run.run(0, bench.batch([], 3, prepared=nothing_prepared))
    run.run(1, bench.batch([], 0, prepared=nothing_prepared))
    found = len(list(bench.read_rows()))
    require(found == before, f"{found - before} rows appeared that were never sent")
    run.run(2, bench.batch(rows, 3))
    run.close()
    bench.settle(query, rows)


def several_checkpoints_and_subtasks(bench: Bench) -> None:
    """Rows of several checkpoints, each of several subtasks, are all there when their batch returns (T1, T2)."""
    query, sent = bench.query(), []
    run = bench.start(query)
    for checkpoint_id, partitions in enumerate((3, 1, 4)):
        sent += (rows := bench.rows(5))
        run.run(checkpoint_id, bench.batch(rows, partitions))
        run.deliver()
        bench.expect(sent, f"after checkpoint {checkpoint_id} with {partitions} subtasks")
    run.close()
    bench.settle(query, sent)


def values_survive(bench: Bench) -> None:
    """Nulls, empty text, quotes, line ends and letters beyond ASCII come out as they went in (P2, T1)."""
    query, rows = bench.query(), bench.rows(24)
    run = bench.start(query)
    run.run(0, bench.batch(rows, 1))
    run.deliver()
    run.close()
    bench.expect(rows, "after one checkpoint")


def invisible_before_the_decision(bench: Bench) -> None:
    """Until the decision record is durable, a reader sees nothing of a checkpoint (T2, W2)."""
    if not bench.exactly_once:
        raise NotApplicable(f"a sink that is {bench.guarantee} may show rows early")
    query, rows = bench.query(), bench.rows()
    run = bench.start(query)

    def look(_: list[SubtaskReport]) -> None:
        bench.expect_nothing(rows, "all tasks have prepared and nothing is decided")

    run.run(0, bench.batch(rows, prepared=look))
    run.close()
    bench.settle(query, rows)
