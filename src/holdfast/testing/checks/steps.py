"""What several checks do: run a batch in a driver that dies, fails, or replays."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.testing.context import CheckContext, Row, require
from holdfast.testing.local import Died, LocalBatch, LocalRun


def crash(context: CheckContext, run: LocalRun, checkpoint_id: int, batch: LocalBatch, fault: str) -> None:
    """Run a batch in a driver that dies there: it tries nothing again and cleans up nothing."""
    try:
        with context.armed(fault, died=True):
            run.run(checkpoint_id, batch)
    except Died:
        return
    raise AssertionError(f"the driver was to die at {fault} and did not")


def fails(run: LocalRun, checkpoint_id: int, batch: LocalBatch, error: type[Exception]) -> None:
    """Run a batch that must fail with this error."""
    try:
        run.run(checkpoint_id, batch)
    except Exception as failure:  # whatever wraps it
        reason: BaseException | None = failure
        while reason is not None and not isinstance(reason, error):
            reason = reason.__cause__
        if reason is None:
            raise
        return
    raise AssertionError(f"the batch was to fail with {error.__name__} and did not")


def replay(run: LocalRun, checkpoint_id: int, batch: LocalBatch) -> None:
    """Spark runs a decided batch again: it must be drained and not written."""
    run.run(checkpoint_id, batch)
    require(batch.written == 0 and batch.drained == 1, f"the decided checkpoint {checkpoint_id} was written again")


def catch_up(context: CheckContext, run: LocalRun, batches: Sequence[Sequence[Row]]) -> None:
    """Run what Spark has not committed."""
    for checkpoint_id, rows in enumerate(batches):
        if run.query.committed is None or checkpoint_id > run.query.committed:
            run.run(checkpoint_id, context.batch(rows))
