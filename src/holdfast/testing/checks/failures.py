"""What a sink does when tasks fail, drivers die and answers get lost."""

from __future__ import annotations

from holdfast.checkpoint.records import decode
from holdfast.core import faults
from holdfast.core.model import Committable
from holdfast.core.naming import escape
from holdfast.errors import CommitError, InjectedFault
from holdfast.sinks.subtask import make_task, running
from holdfast.sinks.write_ahead import WriteAheadSink
from holdfast.testing.checks.companion import Companion, CompanionError
from holdfast.testing.checks.steps import catch_up, crash, fails, replay
from holdfast.testing.context import CheckContext, NotApplicable, require
from holdfast.testing.local import Died, TaskFailed, pickled_copy


def abort_undoes_a_prepared_task(context: CheckContext) -> None:
    """`abort` after `pre_commit` undoes the work: the task's answer did not reach the driver (T5)."""
    _abort(context, prepared=True)


def abort_undoes_a_half_written_task(context: CheckContext) -> None:
    """`abort` before `pre_commit` undoes the work (T5)."""
    _abort(context, prepared=False)


def _abort(context: CheckContext, *, prepared: bool) -> None:
    query, rows = context.query(), context.rows()
    run = context.start(query)
    sink, when = pickled_copy(run.sinks[0]), f"a task was aborted {'after' if prepared else 'before'} pre_commit"
    task = make_task(run.info, sink.name, 0, 0, 0, 0)
    with running(task):
        txn = sink.begin(task)
        for batch in context.partitions(rows, 1)[0]:
            sink.write(txn, batch)
        data = sink.pre_commit(txn) if prepared else None
        sink.abort(txn)
    context.expect_nothing(rows, when)
    context.expect_undone(run.info, 0, [Committable(sink.name, 0, data)] if data is not None else [], when)
    context.expect_clean(query, when)
    run.run(0, context.batch(rows))
    run.close()
    context.settle(query, rows)


def failed_task_leaves_nothing(context: CheckContext) -> None:
    """One task fails, its siblings have prepared: nothing of the checkpoint stays, the replay delivers once (T5)."""
    query, rows = context.query(), context.rows()
    run = context.start(query)
    fails(run, 0, context.batch(rows, 3, failing=2), TaskFailed)
    context.expect_nothing(rows, "a task of the checkpoint failed")
    if context.exactly_once:
        context.expect_clean(query, "after a task failed and the driver recovered")
    run = context.start(query)
    run.run(0, context.batch(rows, 3))
    run.close()
    context.settle(query, rows)


def failed_companion_leaves_nothing(context: CheckContext) -> None:
    """Another sink of the stream cannot pre-commit: this one delivers nothing either (T8)."""
    query, rows = context.query(), context.rows()
    run = context.start(query, Companion("pre_commit"))
    fails(run, 0, context.batch(rows), CompanionError)
    context.expect_nothing(rows, "another sink of the stream failed to pre-commit")
    run = context.start(query, Companion())
    run.run(0, context.batch(rows))
    run.close()
    context.expect(rows, "after the replay")


def companion_commits_later(context: CheckContext) -> None:
    """Another sink cannot commit a decided checkpoint: the restart finishes both, and this one once (T6, T8)."""
    query, rows = context.query(), context.rows()
    run = context.start(query, Companion("commit"))
    fails(run, 0, context.batch(rows), CommitError)
    run = context.start(query, Companion())
    replay(run, 0, context.batch(rows))
    run.close()
    context.expect(rows, "after the restart finished the commit")


def forgotten_attempt_is_swept(context: CheckContext) -> None:
    """A task prepared, its executor died and Spark ran it again: the first attempt never shows (T4, rule 2, rule 8)."""
    query, rows, more = context.query(), context.rows(), context.rows()
    run = context.start(query)
    run.run(0, context.batch(rows, 2, retried={0, 1}))
    run.deliver()
    context.expect(rows, "after a checkpoint whose tasks ran twice")
    run.run(1, context.batch(more))
    run.deliver()
    context.expect_clean(query, "after the next batch")
    run.close()
    context.settle(query, rows + more)


def crash_before_the_decision(context: CheckContext) -> None:
    """All tasks prepared, then the driver died: the restart undoes it, the replay delivers once (T2, T4, W8)."""
    query, rows, more = context.query(), context.rows(), context.rows()
    prepared: list[Committable] = []
    run = context.start(query)
    batch = context.batch(rows, 3, prepared=lambda reports: prepared.extend(c for r in reports for c in r.committables))
    crash(context, run, 0, batch, "decision=error")
    context.expect_nothing(rows, "the driver died before the decision")
    run = context.start(query)
    context.expect_nothing(rows, "a new driver recovered from a crash before the decision")
    context.expect_undone(run.info, 0, prepared, "a new driver recovered from a crash before the decision")
    run.run(0, context.batch(rows, 3))
    run.run(1, context.batch(more))
    run.close()
    context.settle(query, rows + more)


def crash_after_the_decision(context: CheckContext) -> None:
    """The driver died after the decision: the restart commits it, from the record alone, before new rows (T2, T4)."""
    query, rows, more = context.query(), context.rows(), context.rows()
    run = context.start(query)
    crash(context, run, 0, context.batch(rows, 3), "decision=lost")
    run = context.start(query)
    run.deliver()
    context.expect(rows, "a new driver started after a crash that followed the decision")
    replay(run, 0, context.batch(rows, 3))
    context.expect(rows, "after Spark's replay of the decided batch")
    run.run(1, context.batch(more))
    run.close()
    context.settle(query, rows + more)


def commit_is_repeated(context: CheckContext) -> None:
    """Committed, then the driver died before it could record that: committing again changes nothing (T3)."""
    query, rows = context.query(), context.rows()
    run = context.start(query)
    crash(context, run, 0, context.batch(rows, 3), "commit.record=error")
    context.expect(rows, "after the first commit")
    run = context.start(query)
    run.deliver()
    context.expect(rows, "after the second commit of the same checkpoint")
    name = f"commits/0.{escape(run.sinks[0].name)}.json"
    outcome = decode(query.storage.read(name), name, "commit")["outcome"]
    require(outcome in ("committed", "already_committed"), f"the second commit answered {outcome!r}")
    replay(run, 0, context.batch(rows, 3))
    run.close()
    context.settle(query, rows)


def commit_answer_is_lost(context: CheckContext) -> None:
    """A commit that worked and was answered by an error is repeated and changes nothing (T3, T6)."""
    query, rows = context.query(), context.rows()
    run = context.start(query)
    with context.armed("commit.sink=lost"):
        run.run(0, context.batch(rows, 3))
        run.deliver()
    context.expect(rows, "after a commit whose answer was lost")
    run.close()
    context.settle(query, rows)


def commit_is_retried(context: CheckContext) -> None:
    """A commit that failed is tried again, or lags and is delivered in order (T6, W5, W6)."""
    query, rows, more = context.query(), context.rows(), context.rows()
    run = context.start(query)
    with context.armed("commit.sink=error"):
        run.run(0, context.batch(rows))
    run.run(1, context.batch(more))
    run.deliver()
    context.expect(rows + more, "after a commit that failed once")
    run.close()
    context.settle(query, rows + more)


def mark_is_lost(context: CheckContext) -> None:
    """Sent, but the committer's mark is missing: the rows are sent again, and what that does is as claimed (W5, W9)."""
    if not isinstance(context.make_sink(), WriteAheadSink):
        raise NotApplicable("it is not a write-ahead sink")
    for fault in ("commit.mark=error", "commit.subtask=lost@2"):
        query, rows = context.query(), context.rows()
        run = context.start(query)
        with context.armed(fault):
            run.run(0, context.batch(rows, 3))
        run.deliver()
        context.expect(rows, f"after a resend ({fault})")
        run.close()
        context.settle(query, rows)


def recovery_is_repeated(context: CheckContext) -> None:
    """Recovery that dies half way and is begun again ends the same; so does recovery with nothing to do (T4)."""
    query, rows, more = context.query(), context.rows(), context.rows()
    run = context.start(query)
    crash(context, run, 0, context.batch(rows), "decision=lost")
    for fault in ("recovery=error", "commit.record=error", "recovery=lost"):
        try:
            with context.armed(fault, died=True):
                context.start(query)
        except Died:
            continue
    run = context.start(query)
    run.deliver()
    context.expect(rows, "after recovery died three times")
    replay(run, 0, context.batch(rows))
    crash(context, run, 1, context.batch(more), "decision=error")
    for _ in range(2):
        context.start(query)
        context.expect_nothing(more, "recovered twice from a crash before the decision")
    run = context.start(query)
    for _ in range(2):
        run.sinks[0].recover(query.pipeline, run.info.generation, {})
    run.run(1, context.batch(more))
    run.close()
    context.settle(query, rows + more)


def replay_with_other_partitions(context: CheckContext) -> None:
    """The replay is split differently: a decided layout is kept, an undecided one leaves nothing behind (W4, P4)."""
    query, first, second = context.query(), context.rows(), context.rows()
    run = context.start(query)
    crash(context, run, 0, context.batch(first, 3), "decision=error")
    run = context.start(query)
    run.run(0, context.batch(first, 1))
    crash(context, run, 1, context.batch(second, 1), "decision=lost")
    run = context.start(query)
    replay(run, 1, context.batch(second, 4))
    run.close()
    context.settle(query, first + second)


def every_fault_point(context: CheckContext) -> None:
    """Whatever the step that fails, before or after its effect: restart, run on, and all is as claimed (T2, T4, T6)."""
    for point in faults.POINTS:
        for mode in ("error", "lost"):
            query, first, second = context.query(), context.rows(), context.rows()
            try:
                with context.armed(f"{point}={mode}"):
                    run = context.start(query)
                    run.run(0, context.batch(first, 3))
                    run.run(1, context.batch(second))
            except InjectedFault:
                pass
            run = context.start(query)
            catch_up(context, run, [first, second])
            run.close()
            try:
                context.settle(query, first + second)
            except AssertionError as error:
                raise AssertionError(f"fault {point}={mode}: {error}") from error
