"""What must hold so that nothing can go wrong after the decision (rules 11, 14, 15, 16).

Some of it the suite cannot do by itself: it needs to be given a row that the endpoint cannot take, the sink with other
options, or a way to make the endpoint drop what is prepared. Without that the check is skipped, and the report says so.
"""

from __future__ import annotations

import time
from dataclasses import replace

from holdfast.checkpoint.ports import Committed, Run
from holdfast.errors import InjectedFault, RestoredEndpointError, RowError
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.testing.checks.steps import crash
from holdfast.testing.context import CheckContext, NotApplicable, require
from holdfast.testing.local import LocalBatch, LocalQuery


def bad_value_is_refused_in_the_task(context: CheckContext) -> None:
    """A value the endpoint could never take is a RowError before the decision; without it the query goes on (D1)."""
    if context.unacceptable is None:
        raise NotApplicable("unacceptable=... was not given")
    query, sent = context.query(), []
    run = context.start(query)
    for checkpoint_id, bad in enumerate(context.unacceptable()):
        rows = context.rows()
        sent += rows
        what = f"a row that the endpoint cannot take (number {checkpoint_id} of unacceptable)"
        good = context.partitions(rows, 2)
        before = query.storage.walk("decisions")
        try:
            run.run(checkpoint_id, LocalBatch([good[0], [*good[1], bad]]))
        except RowError as error:
            said = str(error).partition(". In checkpoint ")[0]  # the sink's own words; ours follow
            require(repr(run.sinks[0].name) in said, f"{what} was refused by an error without the sink's name")
        else:
            raise AssertionError(f"{what} was neither refused nor noticed: it was decided")
        decided = query.storage.walk("decisions")
        require(decided == before, f"{what} was refused after its checkpoint was decided: {decided}")
        context.expect_nothing(rows, f"{what} was refused")
        run = context.start(query)
        run.run(checkpoint_id, context.batch(rows))
        run.deliver()
    run.close()
    context.settle(query, sent)


def restored_endpoint_is_refused(context: CheckContext) -> None:
    """A ledger that lacks what commit records say was committed is refused at the start, a good one is not (D5)."""
    query, rows = context.query(), context.rows()
    run = context.start(query)
    run.run(0, context.batch(rows))
    run.deliver()
    run.close()
    now = int(time.time() * 1000)
    good = replace(run.info, last_decided=0, committed={run.sinks[0].name: Committed(0, now)})
    try:
        _open(context, good)
    except RestoredEndpointError as error:
        raise AssertionError(f"an endpoint that has all that was committed is refused: {error}") from error
    behind = replace(run.info, last_decided=7, committed={run.sinks[0].name: Committed(7, now)})
    try:
        _open(context, behind)
    except RestoredEndpointError:
        context.settle(query, rows)
        return
    missing = "the log says that checkpoints 1 to 7 were committed and the endpoint does not know them"
    require(not context.ledger, f"{missing}, and the sink starts all the same")
    raise NotApplicable("it keeps no ledger, so an endpoint that was restored or made anew cannot be noticed")


def _open(context: CheckContext, info: Run) -> None:
    sink = context.make_sink()
    try:
        sink.open(info)
    finally:
        sink.close()


def still_prepared_tells_the_truth(context: CheckContext) -> None:
    """`still_prepared` answers with all committables while the endpoint holds them, and with none that it lost (D3)."""
    query, rows = context.query(), context.rows()
    run = context.start(query)
    sink = run.sinks[0]
    reports = context.batch(rows).write(run.info, run.sinks, 0, 0)
    prepared = [c.data for report in reports for c in report.committables]
    held = list(sink.still_prepared(prepared))
    gone = len(prepared) - len(held)
    require(held == prepared, f"{gone} of {len(prepared)} committables were said to be gone at once")
    dropped = bool(prepared) and _drop(context, query, sink)
    held = list(sink.still_prepared(prepared)) if dropped else []
    require(not held, f"the endpoint dropped all that was prepared, and {len(held)} are said to be still there")
    sink.recover(query.pipeline, run.info.generation, {})
    run.run(0, context.batch(rows))
    run.deliver()
    run.close()
    context.settle(query, rows)
    if not dropped:
        raise NotApplicable("drop_prepared=... was not given" if prepared else "its tasks leave nothing prepared")


def _drop(context: CheckContext, query: LocalQuery, sink: TwoPhaseCommitSink) -> bool:
    """Make the endpoint forget what is prepared. The suite can do it itself where that is in the write-ahead log."""
    if context.drop_prepared is not None:
        context.drop_prepared()
        return True
    files = query.storage.walk("wal")
    asked = type(sink).still_prepared is not TwoPhaseCommitSink.still_prepared
    for name in files if asked else ():
        query.storage.delete(name)
    return bool(files) and asked


def changed_options_change_nothing_decided(context: CheckContext) -> None:
    """A checkpoint decided with one set of options is delivered by them after a restart with others (D6, rule 16)."""
    if context.changed is None:
        raise NotApplicable("changed=... was not given")
    query, rows = context.query(), context.rows()
    run = context.start(query)
    crash(context, run, 0, context.batch(rows, 3), "decision=lost")
    other = context.changed()
    require(other.name == run.sinks[0].name, f"changed() must keep the name {run.sinks[0].name!r}, not {other.name!r}")
    run = query.start([other])
    run.deliver()
    context.expect(rows, "decided, then started with other options")
    run.close()


def repair_is_repeated(context: CheckContext) -> None:
    """Decided work that the endpoint dropped is produced again, once, however often the repair dies (P5, rule 4)."""
    if not context.make_sink().repairable:
        raise NotApplicable("it is not repairable: what the endpoint drops stops the query")
    if context.drop_prepared is None:
        raise NotApplicable("drop_prepared=... was not given")
    query, rows, more = context.query(), context.rows(), context.rows()
    run = context.start(query)
    crash(context, run, 0, context.batch(rows, 2), "decision=lost")
    context.drop_prepared()
    for fault in ("repair=error", "repair=lost"):
        try:
            with context.armed(fault):
                context.start(query).run(0, context.batch(rows, 2))
        except InjectedFault:
            continue
    run = context.start(query)
    run.run(0, context.batch(rows, 2))
    context.expect(rows, "after a repair that died twice")
    run.run(1, context.batch(more))
    run.close()
    context.settle(query, rows + more)
