"""Waiting for the loops: the batch for the sinks that may not lag, the end of a run for all of them (rules 13, 17)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from holdfast.checkpoint import refusals
from holdfast.checkpoint.delivery import Delivery
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import Sink
from holdfast.checkpoint.retrying import Retrying
from holdfast.core.model import CheckpointId
from holdfast.errors import HoldfastError, SinkError, UndeliveredError

#: Seconds for which a batch waits for a sink that is delivering a backlog as large as it may be.
BACKLOG_PATIENCE = 30.0
#: seconds between two looks whether a batch that waits for a chore need not wait any more
LOOK = 1.0


class Waiting:
    """Who waits for what in one run, and why the run cannot go on."""

    def __init__(self, log: CheckpointLog, sinks: Sequence[Sink], retrying: Retrying) -> None:
        self._log, self._sinks, self._loops, self._retrying = log, sinks, retrying.loops, retrying
        self.deliveries: list[Delivery] = []
        #: held by a batch until it returns, and by a loop for a chore: neither may plan while the other does
        self.idle = threading.Lock()
        #: why the run cannot go on, whoever but a loop noticed it first (rule 17)
        self.noticed: HoldfastError | None = None
        #: somebody stops the query, and has waited for the batch long enough
        self.hurried = False

    @property
    def failure(self) -> HoldfastError | None:
        """Why the run cannot go on; None while it can."""
        failed = (delivery.failure for delivery in self.deliveries if delivery.failure is not None)
        return self.noticed or next(failed, None)

    def raise_failure(self) -> None:
        """Raise it, if there is one."""
        if self.failure is not None:
            raise self.failure

    @property
    def newest(self) -> CheckpointId:
        """The newest checkpoint that is decided; -1: none is."""
        last = self._log.last_decided
        return -1 if last is None else last

    def hurry(self) -> None:
        """The batch waits for nothing any more: what it waits for may never come."""
        self.hurried = True
        self._loops.wake()

    # -- the batch --------------------------------------------------------------------------------------------------

    def until(self, settled: Callable[[Delivery], bool]) -> None:
        """Wait until this holds for every sink; raise why it cannot."""
        done = self._loops.wait(lambda: self._over or all(settled(d) for d in self.deliveries))
        self.raise_failure()
        if done and not self.hurried:
            return
        if not all(settled(d) for d in self.deliveries) and (left := self.undelivered()) is not None:
            raise left  # the run is being stopped, or nobody commits any more

    @property
    def _over(self) -> bool:
        return self.failure is not None or self.hurried

    @contextmanager
    def batch(self, blame: Callable[[], SinkError | None]) -> Iterator[None]:
        """Let no loop do a chore meanwhile; `blame` names the one that does not end."""
        began = self._retrying.clock()
        while not self.idle.acquire(timeout=LOOK):
            late = self.hurried or self._retrying.clock() - began >= self._retrying.retry.patience()
            if late and (error := blame()) is not None:
                raise error
        try:
            yield
        finally:
            self.idle.release()

    def make_room(self) -> None:
        """A full backlog ends the query, unless its sink is just delivering it, as after a restart (W6, W7)."""
        self._loops.wake()
        full = refusals.full_backlogs(self._log, self._sinks)
        if full:
            # Counted from here, since a look at the whole backlog costs as much as it is long, and each commit wakes.
            aims = [(d, d.delivered + full[d.sink.name].excess) for d in self.deliveries if d.sink.name in full]
            self._loops.wait(
                lambda: self._over or all(d.problem or d.delivered >= aim for d, aim in aims), BACKLOG_PATIENCE
            )
        self.raise_failure()
        if full:
            refusals.check_backlog(self._log, self._sinks, self._problems)

    # -- the end of a run -------------------------------------------------------------------------------------------

    def drain(self, timeout: float, *, only_prompt: bool = False) -> bool:
        """Wait until all is delivered, or what sinks that may not lag owe; False when some is left (D8)."""
        return self._loops.wait(
            lambda: (
                self.failure is not None
                or all(d.done_through(self.newest) or (only_prompt and d.sink.may_lag) for d in self.deliveries)
            ),
            timeout,
        )

    def drain_or_raise(self, timeout: float) -> None:
        """Each batch of a bounded run may be its last, and Spark calls no one after it: so nothing may lag (D8)."""
        if not self.drain(timeout) and (left := self.undelivered()) is not None:
            raise left
        self.raise_failure()

    def tell(self, timeout: float) -> bool:
        """Wait until every sink knows of all that is complete, and has thrown away what it kept for it."""
        self._loops.wake()
        return self._loops.wait(lambda: self.failure is not None or all(d.told for d in self.deliveries), timeout)

    def undelivered(self) -> UndeliveredError | None:
        """What is left, by sink, checkpoints and rows; None when nothing is."""
        return refusals.undelivered(self._log, self._sinks, self._problems)

    @property
    def _problems(self) -> dict[str, str | None]:
        return {d.sink.name: d.problem for d in self.deliveries}
