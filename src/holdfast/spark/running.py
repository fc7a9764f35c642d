"""The queries of this process that are alive: one for each checkpoint location, each with its timer (rules 7, 17)."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.pulse import Pulse
from holdfast.errors import CheckpointInUseError, EngineError, HoldfastError, StorageError
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark import private
from holdfast.spark.failures import SparkGoneError, StoppedError, failure_of
from holdfast.spark.progress import states_of

logger = logging.getLogger("holdfast")
#: seconds between two looks at what may be due while no batch comes
TICK = 2.0
#: seconds between two looks whether the query still runs
LOOK = 0.25
#: seconds a failure outside a batch waits for the batch under way to meet it
GRACE = 10.0
#: seconds from the first word of a stop until Spark's own has begun, at most
STOP_COMES = 5.0
#: seconds the end of a query waits for a loop that is busy with its endpoint
LAST_CALL = 5.0


class RunningQuery:
    """One query, from before its recovery until after its end."""

    def __init__(self, location: str, sinks: Sequence[TwoPhaseCommitSink]) -> None:
        self.location, self.sinks = location, list(sinks)
        #: for those who watch: the pipeline's name, its delivery, and the options of its sources in Spark's order
        self.pipeline, self.delivery, self.sources = "", "", list[Mapping[str, str]]()
        self._announced = False
        self._query: StreamingQuery | None = None
        self.coordinator: Coordinator | None = None
        self._pulse: Pulse | None = None
        self._advance: Callable[[bool], None] = lambda last: None
        self._ending = threading.Lock()
        self._over = False
        self.drain_timeout = 60.0
        #: when the end stops waiting for sinks that lag: whoever has the least patience decides
        self._deadline = math.inf
        #: sinks whose loop was still busy with its endpoint when the query had ended
        self.stuck: list[str] = []
        #: the last batch whose state's size the history knows
        self._told_state = -1
        #: why the query failed, or why its end is no good one
        self.failure: HoldfastError | None = None
        #: a batch is under way; somebody stops the query; the next batch waits for that
        self.in_batch, self.stopping, self.at_gate = False, False, False
        #: ... and waits for nothing
        self.at_once = False

    @property
    def active(self) -> bool:
        """Whether it is starting or runs; a JVM that is gone runs nothing."""
        if self._query is None:
            return not self._over
        try:
            return bool(self._query.isActive)
        except (Py4JError, OSError):
            return False

    def announce(self) -> None:
        """Tell those who watch that it is about to start."""
        with _lock:
            self._announced = True
            listening = list(_told)
        for told in listening:
            told(self)

    @property
    def announced(self) -> bool:
        """Whether those who watch know of it."""
        return self._announced

    @property
    def last_progress(self) -> Mapping[str, Any] | None:
        """What Spark said last, while the query runs."""
        query = self._query
        try:
            return None if query is None or not query.isActive else query.lastProgress
        except (Py4JError, OSError):
            return None

    @property
    def described(self) -> list[str]:
        """What Spark calls each source; nothing before the first batch."""
        try:
            told: Mapping[str, Any] | None = None if self._query is None else self._query.lastProgress
        except (Py4JError, OSError):
            told = None
        return [] if told is None else [str(source.get("description", "")) for source in told.get("sources", [])]

    @property
    def run_id(self) -> str | None:
        """Spark's id of this run."""
        try:
            return None if self._query is None else str(self._query.runId)
        except (Py4JError, OSError):
            return None

    @property
    def over(self) -> bool:
        """Whether it has ended, and its sinks are closed."""
        return self._over

    def follow(
        self, query: StreamingQuery, coordinator: Coordinator, pulse: Pulse, advance: Callable[[bool], None]
    ) -> None:
        """Let the loops do what is due while the source is quiet, and close the sinks when the query ends.

        `advance` tells sources how far the pipeline has got; once more, with True, when the query has ended.
        """
        self._query, self.coordinator, self._pulse, self._advance = query, coordinator, pulse, advance
        threading.Thread(target=self._tick, name=f"holdfast-{query.name}", daemon=True).start()

    def _tick(self) -> None:
        coordinator, pulse = self.coordinator, self._pulse
        assert coordinator is not None and pulse is not None
        try:
            self._watch(coordinator, pulse)
        except Exception as error:
            logger.exception("the timer of the query at %s failed", self.location)
            self._fail(EngineError(f"the timer of the query failed: {type(error).__name__}: {error}"))
        if not self.stopping:  # else whoever stops it finishes it, with the patience it has
            self.finish(self.drain_timeout)

    def _watch(self, coordinator: Coordinator, pulse: Pulse) -> None:
        next_tick = 0.0
        while self.active:
            if time.monotonic() >= next_tick:
                coordinator.tick()
                try:
                    pulse.beat(coordinator.deliveries)
                except StorageError as error:
                    logger.warning("the query's sign of life could not be written: %s", error)
                self._advance(False)
                self._tell_state(coordinator)
                next_tick = time.monotonic() + TICK
            if coordinator.failure is not None:
                self._fail(coordinator.failure)
                return
            time.sleep(LOOK)

    def _tell_state(self, coordinator: Coordinator) -> None:
        """Let the history know how large the query's state was after each batch; nobody depends on it."""
        try:
            found = states_of(self._query, self._told_state)
            coordinator.keyed_state(found)
        except (Py4JError, OSError, StorageError, KeyError, TypeError) as error:  # Spark is gone, or says it otherwise
            logger.info("the state's size could not be written down: %s: %s", type(error).__name__, error)
            return
        self._told_state = max(found, default=self._told_state)

    def _fail(self, failure: HoldfastError) -> None:
        """End the query with an exception in Spark's eyes too.

        A batch that is under way meets the failure by itself and raises it. When none is, an interrupt of its thread is
        the only thing that Spark takes for a failure: a stop would look like a clean end to listeners and to
        awaitAnyTermination.
        """
        self.failure = failure
        logger.error("the query at %s fails: %s: %s", self.location, type(failure).__name__, failure)
        deadline = time.monotonic() + GRACE
        while self.in_batch and self.active and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            while self.active and self._query is not None and not self.stopping:
                private.interrupt(self._query)
                time.sleep(1.0)
        except (Py4JError, OSError) as error:
            logger.warning("the query at %s could not be interrupted: %s", self.location, error)

    def finish(self, drain: float) -> None:
        """The query has ended: deliver what is left, for so many seconds at most, and close the sinks; once.

        Never raises: what is wrong is in `failure`.
        """
        self._deadline = min(self._deadline, time.monotonic() + drain)
        with self._ending:
            coordinator, self.coordinator = self.coordinator, None
            if coordinator is None:
                return
            self._tell_state(coordinator)
            problem = self._problem()
            self.failure = self.failure or coordinator.failure or problem
            if self.failure is None and not self._drained(coordinator):
                self.failure = coordinator.failure or coordinator.undelivered()
            try:
                self._close(coordinator)
            except Exception as error:  # whatever it is, this is no good end
                logger.exception("the end of the query at %s failed", self.location)
                self.failure = self.failure or EngineError(
                    f"the end of the query failed: {type(error).__name__}: {error}"
                )
            self._over = True

    def _drained(self, coordinator: Coordinator) -> bool:
        while not coordinator.drain(0.2):
            if time.monotonic() >= self._deadline:
                return False
        # Nobody else would before the next start: rows of the log that are delivered are removed then.
        coordinator.tell(LAST_CALL)
        return True

    def _close(self, coordinator: Coordinator) -> None:
        for delivery in coordinator.deliveries:
            if not delivery.done_through(1 << 62):
                delivery.cut_off()
        if self.failure is None:
            with self._blamed():
                coordinator.finish(LAST_CALL)
        with self._blamed():
            self.stuck = coordinator.close(LAST_CALL, sweep=self.in_batch or self.failure is not None)
        if self.stuck:
            logger.warning("the query at %s has ended, but %s is still busy", self.location, ", ".join(self.stuck))
        try:
            if self._pulse is not None:
                self._pulse.end(coordinator.deliveries, self.failure)
        except StorageError as error:
            logger.warning("how the query ended could not be written: %s", error)
        self._advance(True)

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """What goes wrong at the end is the query's failure, and keeps nobody from the next step."""
        try:
            yield
        except HoldfastError as error:
            self.failure = self.failure or error
            logger.warning("the end of the query at %s: %s: %s", self.location, type(error).__name__, error)

    def _problem(self) -> HoldfastError | None:
        """Why Spark says that the query failed; None when it ended by itself or was stopped."""
        try:
            told = None if self._query is None else private.failure_text(self._query)
            return None if told is None else failure_of(told)
        except (Py4JError, OSError):
            return SparkGoneError()

    def never_started(self, error: BaseException) -> None:
        """For those who watch: it is over before it began."""
        self.failure = error if isinstance(error, HoldfastError) else EngineError(f"{type(error).__name__}: {error}")
        self._over = True

    def hurry(self) -> None:
        """A batch that waits for an endpoint waits no longer."""
        if self.coordinator is not None:
            self.coordinator.hurry()

    def ended_by_stop(self) -> bool:
        """In a batch that failed: whether Spark counts the query as ended, which a stop that has begun soon makes true.

        It must be told of an interrupt only then: before, it takes one for a failure.
        """
        deadline = time.monotonic() + STOP_COMES
        while self.stopping and self.active and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.active

    def gate(self, pause: Callable[[], None]) -> None:
        """Before a batch: while somebody stops the query, begin nothing; `pause` ends with Spark's interrupt."""
        while self.stopping and self.active:
            self.at_gate = True
            pause()
        self.at_gate = False
        if self.stopping:
            raise StoppedError


_lock = threading.Lock()
_live: dict[str, RunningQuery] = {}
#: who wants to know of queries that start
_told: list[Callable[[RunningQuery], None]] = []


def announce(told: Callable[[RunningQuery], None]) -> Callable[[], None]:
    """Call `told` with every query of this process that runs or starts, until the answer is called."""
    with _lock:
        _told.append(told)
        # One that has ended stays among them until its location is used again: there is nothing to tell of it.
        running = [query for query in _live.values() if query.announced and query.active]
    for query in running:
        told(query)

    def forget() -> None:
        with _lock:
            _told.remove(told)

    return forget


@contextmanager
def reserve(location: str, sinks: Sequence[TwoPhaseCommitSink]) -> Iterator[RunningQuery]:
    """Refuse a second live query of this process on the same location or sink object; other processes are fenced.

    A query that has ended may still be closing its sinks, or hang in one: that holds up nobody but a new query with
    the same location or sinks, which waits for it for a while.
    """
    for other in [other for other in list(_live.values()) if not other.active]:
        if other.location == location or _shared(sinks, other):
            other.finish(0.0)
            if _shared([sink for sink in sinks if sink.name in other.stuck], other):
                raise CheckpointInUseError(
                    f"sink {other.stuck[0]!r} of the query at {other.location}, which has ended, still waits for its "
                    "endpoint: make a new sink object for this query"
                )
    with _lock:
        for other in list(_live.values()):
            if not other.active:
                if not other.stuck or other.location == location:
                    del _live[other.location]
            elif other.location == location:
                raise CheckpointInUseError(
                    f"checkpoint location {location} is used by a query that is running in this process: stop it "
                    "first, or give this pipeline a checkpoint location of its own"
                )
            elif used := _shared(sinks, other):
                raise CheckpointInUseError(
                    f"sink object {used!r} belongs to the running query at {other.location}: make a new sink for "
                    "this one"
                )
        mine = _live[location] = RunningQuery(location, sinks)
    try:
        yield mine
    except BaseException as error:
        mine.never_started(error)
        with _lock:
            del _live[location]
        raise


def _shared(sinks: Sequence[TwoPhaseCommitSink], other: RunningQuery) -> str | None:
    return next((sink.name for sink in sinks if any(sink is used for used in other.sinks)), None)
