"""What a sink does when tasks fail, drivers die and answers get lost."""

from __future__ import annotations

from holdfast.checkpoint.records import decode
from holdfast.core import faults
from holdfast.core.model import Committable
from holdfast.core.naming import escape
from holdfast.errors import CommitError, InjectedFault
from holdfast.sinks.subtask import make_task, running
from holdfast.sinks.write_ahead import WriteAheadSink
from holdfast.testing.bench import Bench, NotApplicable, require
from holdfast.testing.checks.companion import Companion, CompanionError
from holdfast.testing.checks.steps import catch_up, crash, fails, replay
from holdfast.testing.local import Died, TaskFailed, travel


def abort_undoes_a_prepared_task(bench: Bench) -> None:
    """`abort` after `pre_commit` undoes the work: the task's answer did not reach the driver (T5)."""
    _abort(bench, prepared=True)


def abort_undoes_a_half_written_task(bench: Bench) -> None:
    """`abort` before `pre_commit` undoes the work (T5)."""
    _abort(bench, prepared=False)


def _abort(bench: Bench, *, prepared: bool) -> None:
    query, rows = bench.query(), bench.rows()
    run = bench.start(query)
    sink, when = travel(run.sinks[0]), f"a task was aborted {'after' if prepared else 'before'} pre_commit"
    task = make_task(run.info, sink.name, 0, 0, 0, 0)
    with running(task):
        txn = sink.begin(task)
        for batch in bench.partitions(rows, 1)[0]:
            sink.write(txn, batch)
        data = sink.pre_commit(txn) if prepared else None
        sink.abort(txn)
    bench.expect_nothing(rows, when)
    bench.expect_undone(run.info, 0, [Committable(sink.name, 0, data)] if data is not None else [], when)
    bench.expect_clean(query, when)
    run.run(0, bench.batch(rows))
    run.close()
    bench.settle(query, rows)


def failed_task_leaves_nothing(bench: Bench) -> None:
    """One task fails, its siblings have prepared: nothing of the checkpoint stays, the replay delivers once (T5)."""
    query, rows = bench.query(), bench.rows()
    run = bench.start(query)
    fails(run, 0, bench.batch(rows, 3, failing=2), TaskFailed)
    bench.expect_nothing(rows, "a task of the checkpoint failed")
    if bench.exactly_once:
        bench.expect_clean(query, "after a task failed and the driver recovered")
    run = bench.start(query)
    run.run(0, bench.batch(rows, 3))
    run.close()
    bench.settle(query, rows)


def failed_companion_leaves_nothing(bench: Bench) -> None:
    """Another sink of the stream cannot pre-commit: this one delivers nothing either (T8)."""
    query, rows = bench.query(), bench.rows()
    run = bench.start(query, Companion("pre_commit"))
    fails(run, 0, bench.batch(rows), CompanionError)
    bench.expect_nothing(rows, "another sink of the stream failed to pre-commit")
    run = bench.start(query, Companion())
    run.run(0, bench.batch(rows))
    run.close()
    bench.expect(rows, "after the replay")


def companion_commits_later(bench: Bench) -> None:
    """Another sink cannot commit a decided checkpoint: the restart finishes both, and this one once (T6, T8)."""
    query, rows = bench.query(), bench.rows()
    run = bench.start(query, Companion("commit"))
    fails(run, 0, bench.batch(rows), CommitError)
    run = bench.start(query, Companion())
    replay(run, 0, bench.batch(rows))
    run.close()
    bench.expect(rows, "after the restart finished the commit")


def forgotten_attempt_is_swept(bench: Bench) -> None:
    """A task prepared, its executor died and Spark ran it again: the first attempt never shows (T4, rule 2, rule 8)."""
    query, rows, more = bench.query(), bench.rows(), bench.rows()
    run = bench.start(query)
    run.run(0, bench.batch(rows, 2, retried={0, 1}))
    run.deliver()
    bench.expect(rows, "after a checkpoint whose tasks ran twice")
    run.run(1, bench.batch(more))
    run.deliver()
    bench.expect_clean(query, "after the next batch")
    run.close()
    bench.settle(query, rows + more)


def crash_before_the_decision(bench: Bench) -> None:
    """All tasks prepared, then the driver died: the restart undoes it, the replay delivers once (T2, T4, W8)."""
    query, rows, more = bench.query(), bench.rows(), bench.rows()
    prepared: list[Committable] = []
    run = bench.start(query)
    batch = bench.batch(rows, 3, prepared=lambda reports: prepared.extend(c for r in reports for c in r.committables))
    crash(bench, run, 0, batch, "decision=error")
    bench.expect_nothing(rows, "the driver died before the decision")
    run = bench.start(query)
    bench.expect_nothing(rows, "a new driver recovered from a crash before the decision")
    bench.expect_undone(run.info, 0, prepared, "a new driver recovered from a crash before the decision")
    run.run(0, bench.batch(rows, 3))
    run.run(1, bench.batch(more))
    run.close()
    bench.settle(query, rows + more)


def crash_after_the_decision(bench: Bench) -> None:
    """The driver died after the decision: the restart commits it, from the record alone, before new rows (T2, T4)."""
    query, rows, more = bench.query(), bench.rows(), bench.rows()
    run = bench.start(query)
    crash(bench, run, 0, bench.batch(rows, 3), "decision=lost")
    run = bench.start(query)
    run.deliver()
    bench.expect(rows, "a new driver started after a crash that followed the decision")
    replay(run, 0, bench.batch(rows, 3))
    bench.expect(rows, "after Spark's replay of the decided batch")
    run.run(1, bench.batch(more))
    run.close()
    bench.settle(query, rows + more)


def commit_is_repeated(bench: Bench) -> None:
    """Committed, then the driver died before it could record that: committing again changes nothing (T3)."""
    query, rows = bench.query(), bench.rows()
    run = bench.start(query)
    crash(bench, run, 0, bench.batch(rows, 3), "commit.record=error")
    bench.expect(rows, "after the first commit")
    run = bench.start(query)
    run.deliver()
    bench.expect(rows, "after the second commit of the same checkpoint")
    name = f"commits/0.{escape(run.sinks[0].name)}.json"
    outcome = decode(query.storage.read(name), name, "commit")["outcome"]
    require(outcome in ("committed", "already_committed"), f"the second commit answered {outcome!r}")
    replay(run, 0, bench.batch(rows, 3))
    run.close()
    bench.settle(query, rows)


def commit_answer_is_lost(bench: Bench) -> None:
    """A commit that worked and was answered by an error is repeated and changes nothing (T3, T6)."""
    query, rows = bench.query(), bench.rows()
    run = bench.start(query)
    with bench.armed("commit.sink=lost"):
        run.run(0, bench.batch(rows, 3))
        run.deliver()
    bench.expect(rows, "after a commit whose answer was lost")
    run.close()
    bench.settle(query, rows)


def commit_is_retried(bench: Bench) -> None:
    """A commit that failed is tried again, or lags and is delivered in order (T6, W5, W6)."""
    query, rows, more = bench.query(), bench.rows(), bench.rows()
    run = bench.start(query)
    with bench.armed("commit.sink=error"):
        run.run(0, bench.batch(rows))
    run.run(1, bench.batch(more))
    run.deliver()
    bench.expect(rows + more, "after a commit that failed once")
    run.close()
    bench.settle(query, rows + more)


def mark_is_lost(bench: Bench) -> None:
    """Sent, but the committer's mark is missing: the rows are sent again, and what that does is as claimed (W5, W9)."""
    if not isinstance(bench.make_sink(), WriteAheadSink):
        raise NotApplicable("it is not a write-ahead sink")
    for fault in ("commit.mark=error", "commit.subtask=lost@2"):
        query, rows = bench.query(), bench.rows()
        run = bench.start(query)
        with bench.armed(fault):
            run.run(0, bench.batch(rows, 3))
        run.deliver()
        bench.expect(rows, f"after a resend ({fault})")
        run.close()
        bench.settle(query, rows)


def recovery_is_repeated(bench: Bench) -> None:
    """Recovery that dies half way and is begun again ends the same; so does recovery with nothing to do (T4)."""
    query, rows, more = bench.query(), bench.rows(), bench.rows()
    run = bench.start(query)
    crash(bench, run, 0, bench.batch(rows), "decision=lost")
    for fault in ("recovery=error", "commit.record=error", "recovery=lost"):
        try:
            with bench.armed(fault, died=True):
                bench.start(query)
        except Died:
            continue
    run = bench.start(query)
    run.deliver()
    bench.expect(rows, "after recovery died three times")
    replay(run, 0, bench.batch(rows))
    crash(bench, run, 1, bench.batch(more), "decision=error")
    for _ in range(2):
        bench.start(query)
        bench.expect_nothing(more, "recovered twice from a crash before the decision")
    run = bench.start(query)
    for _ in range(2):
        run.sinks[0].recover(query.pipeline, run.info.generation, {})
    run.run(1, bench.batch(more))
    run.close()
    bench.settle(query, rows + more)


def replay_with_other_partitions(bench: Bench) -> None:
    """The replay is split differently: a decided layout is kept, an undecided one leaves nothing behind (W4, P4)."""
    query, first, second = bench.query(), bench.rows(), bench.rows()
    run = bench.start(query)
    crash(bench, run, 0, bench.batch(first, 3), "decision=error")
    run = bench.start(query)
    run.run(0, bench.batch(first, 1))
    crash(bench, run, 1, bench.batch(second, 1), "decision=lost")
    run = bench.start(query)
    replay(run, 1, bench.batch(second, 4))
    run.close()
    bench.settle(query, first + second)


def every_fault_point(bench: Bench) -> None:
    """Whatever the step that fails, before or after its effect: restart, run on, and all is as claimed (T2, T4, T6)."""
    for point in faults.POINTS:
        for mode in ("error", "lost"):
            query, first, second = bench.query(), bench.rows(), bench.rows()
            try:
                with bench.armed(f"{point}={mode}"):
                    run = bench.start(query)
                    run.run(0, bench.batch(first, 3))
                    run.run(1, bench.batch(second))
            except InjectedFault:
                pass
            run = bench.start(query)
            catch_up(bench, run, [first, second])
            run.close()
            try:
                bench.settle(query, first + second)
            except AssertionError as error:
                raise AssertionError(f"fault {point}={mode}: {error}") from error
