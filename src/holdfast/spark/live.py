"""The queries of this process that are alive: one for each checkpoint location, each with its timer (rule 7)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.errors import CheckpointInUseError
from holdfast.sinks.two_phase import TwoPhaseCommitSink

logger = logging.getLogger("holdfast")
#: seconds between two looks at checkpoints that lag while no batch comes
TICK = 2.0
#: seconds between two looks whether the query still runs
LOOK = 0.25
#: seconds a start waits for the last delivery of a query that has ended
PATIENCE = 30.0


class Live:
    """One query, from before its recovery until after its end."""

    def __init__(self, location: str, sinks: Sequence[TwoPhaseCommitSink]) -> None:
        self.location, self.sinks = location, list(sinks)
        self._query: StreamingQuery | None = None
        self._coordinator: Coordinator | None = None
        self._advance: Callable[[bool], None] = lambda last: None
        self._ending = threading.Lock()
        #: why the timer stopped the query, or why its last files are not complete
        self.failure: Exception | None = None

    @property
    def active(self) -> bool:
        """Whether it is starting or runs; a JVM that is gone runs nothing."""
        if self._query is None:
            return True
        try:
            return bool(self._query.isActive)
        except (Py4JError, OSError):
            return False

    def follow(self, query: StreamingQuery, coordinator: Coordinator, advance: Callable[[bool], None]) -> None:
        """Deliver what lags while the source is quiet, and close the sinks when the query ends.

        `advance` tells sources how far the pipeline has got; once more, with True, when the query has ended.
        """
        self._query, self._coordinator, self._advance = query, coordinator, advance
        threading.Thread(target=self._tick, name=f"holdfast-{query.name}", daemon=True).start()

    def _tick(self) -> None:
        coordinator, next_tick = self._coordinator, 0.0
        while self.active and coordinator is not None:
            if time.monotonic() >= next_tick:
                coordinator.tick()
                self._advance(False)
                next_tick = time.monotonic() + TICK
            if coordinator.failure is not None and self._query is not None:
                self.failure = coordinator.failure
                self._query.stop()
                break
            time.sleep(LOOK)
        self.finish()

    def finish(self, wait: float = -1) -> None:
        """Close the sinks, once; TimeoutError when a delivery is still under way after `wait` seconds."""
        if not self._ending.acquire(timeout=wait):
            raise TimeoutError
        try:
            coordinator = self._coordinator
            if coordinator is None:
                return
            if self.failure is None:
                self._complete(coordinator, wait)
            coordinator.close(wait)
            self._coordinator = None
            self._advance(True)
        finally:
            self._ending.release()
        left = {action.checkpoint_id for action in coordinator.pending}
        if left:
            logger.warning(
                "the query at %s ended with %d checkpoints not yet delivered; the next start delivers them",
                self.location,
                len(left),
            )

    def _complete(self, coordinator: Coordinator, wait: float) -> None:
        """A query that ended well leaves nothing to wait for rows that will not come (F6)."""
        try:
            if self._ended_well():
                coordinator.finish(wait)
        except Exception as error:  # noqa: BLE001  nothing is lost, but awaitTermination() tells that rows are not seen
            self.failure = error
            logger.warning(
                "the query at %s could not complete its last files; `holdfast flush` does: %s", self.location, error
            )

    @property
    def completing(self) -> bool:
        """Whether the last files are being completed."""
        coordinator = self._coordinator
        return coordinator is not None and coordinator.completing

    def _ended_well(self) -> bool:
        """Whether the query ended by itself or was stopped; a JVM that is gone tells nothing."""
        try:
            return self._query is not None and self._query.exception() is None
        except (Py4JError, OSError):
            return False


class HoldfastQuery(StreamingQuery):
    """Spark's StreamingQuery, which also fails with what failed between two batches."""

    live: Live | None = None

    def exception(self) -> StreamingQueryException | None:
        """See StreamingQuery."""
        found = super().exception()
        if found is None and self.live is not None and self.live.failure is not None:
            failure = self.live.failure
            return StreamingQueryException(f"{type(failure).__name__}: {failure}")
        return found

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """See StreamingQuery."""
        ended = super().awaitTermination(timeout)
        if ended is not False and self.live is not None:
            self._finish(self.live)
            if self.live.failure is not None:
                raise self.live.failure
        return ended

    def stop(self) -> None:
        """See StreamingQuery; also waits for what its sinks complete at the end."""
        super().stop()
        if self.live is not None:
            self._finish(self.live)

    def _finish(self, live: Live) -> None:
        while True:
            try:
                live.finish(PATIENCE)
            except TimeoutError:
                if live.completing:
                    continue  # large files take their time
                logger.warning("the query at %s has ended, but a delivery is still under way", live.location)
            return


_lock = threading.Lock()
_live: dict[str, Live] = {}


@contextmanager
def reserve(location: str, sinks: Sequence[TwoPhaseCommitSink]) -> Iterator[Live]:
    """Refuse a second live query of this process on the same location or sink object; other processes are fenced."""
    for other in list(_live.values()):
        if not other.active:
            _finish(other)
    with _lock:
        for other in list(_live.values()):
            if not other.active:
                del _live[other.location]
            elif other.location == location:
                raise CheckpointInUseError(
                    f"checkpoint location {location} is used by a query that is running in this process: stop it "
                    "first, or give this pipeline a checkpoint location of its own"
                )
            else:
                _refuse_shared(sinks, other)
        mine = _live[location] = Live(location, sinks)
    try:
        yield mine
    except BaseException:
        with _lock:
            del _live[location]
        raise


def _finish(ended: Live) -> None:
    """Let a query that has ended close its sinks before another opens them."""
    try:
        ended.finish(PATIENCE)
    except TimeoutError:
        raise CheckpointInUseError(
            f"the query at {ended.location} has ended, but it is still delivering a pending checkpoint: its endpoint "
            f"has not answered for {PATIENCE:.0f} s. Give the sink a timeout, and start in a new process"
        ) from None


def _refuse_shared(sinks: Sequence[TwoPhaseCommitSink], other: Live) -> None:
    for sink in sinks:
        if any(sink is used for used in other.sinks):
            raise CheckpointInUseError(
                f"sink object {sink.name!r} belongs to the running query at {other.location}: make a new sink for "
                "this one"
            )
