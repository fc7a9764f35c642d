"""Spark's StreamingQuery as `write_stream(...).start()` gives it: it fails with our error, and stops politely."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import HoldfastError
from holdfast.spark.failures import SparkGoneError, asking_spark, failure_of
from holdfast.spark.running import RunningQuery

logger = logging.getLogger("holdfast")
#: seconds a stop waits for the checkpoint under way, and how long it takes at most in all
CURRENT, AT_MOST = 10.0, 30.0
#: ... of which so many are for the last words of loops and sinks
_LAST_WORDS = 12.0


class HoldfastQuery(StreamingQuery):
    """Spark's StreamingQuery; what it raises is a HoldfastError, with Spark's own as its cause."""

    running: RunningQuery | None = None

    @property
    def isActive(self) -> bool:
        """See StreamingQuery; without its Java process nothing is."""
        active = False
        with suppress(SparkGoneError), asking_spark():
            active = bool(super().isActive)
        return active

    def exception(self) -> StreamingQueryException | None:
        """See StreamingQuery; its cause is the HoldfastError."""
        found = None
        with suppress(HoldfastError), self._asking():  # what went wrong is known to the run then
            found = super().exception()
        failure = self._known
        if failure is None or isinstance(failure, StreamingQueryException):
            return failure or found
        told = StreamingQueryException(f"{type(failure).__name__}: {failure}")
        told.__cause__ = failure
        return told

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """See StreamingQuery; raises the HoldfastError that ended the query."""
        with self._asking():
            ended = super().awaitTermination(timeout)
        if ended is not False:
            self._finish()
            if self.running is not None and self.running.failure is not None:
                raise self.running.failure
        return ended

    def processAllAvailable(self) -> None:
        """See StreamingQuery; also waits until sinks that may not lag have committed it."""
        with self._asking():
            super().processAllAvailable()
        running = self.running
        coordinator = None if running is None else running.coordinator
        if running is not None and coordinator is not None:
            drained = coordinator.drain(running.drain_timeout, only_prompt=True)
            failure = coordinator.failure or (None if drained else coordinator.undelivered())
            if failure is not None:
                raise failure

    def stop(self, now: bool = False, timeout: float = AT_MOST) -> None:
        """Stop after the checkpoint under way, and let sinks that lag catch up; in `timeout` seconds at most.

        UndeliveredError when they do not: the next start delivers the rest first. `now` waits for nothing.
        """
        began, running = time.monotonic(), self.running
        if running is None or not self.isActive:
            self._stop()
            self._finish()
            return
        running.stopping, running.at_once = True, now
        if not now:
            with suppress(SparkGoneError):
                self._wait_for_checkpoint(running, began + min(CURRENT, timeout))
        running.hurry()  # Spark's stop waits for the batch, and its interrupt does not reach what that waits for
        self._stop()
        spent = time.monotonic() - began
        running.finish(0.0 if now else max(0.0, min(running.drain_timeout, timeout - spent - _LAST_WORDS)))
        if running.failure is not None and not now:
            raise running.failure

    def _wait_for_checkpoint(self, running: RunningQuery, deadline: float) -> None:
        while time.monotonic() < deadline and self.isActive and not running.at_gate:
            with asking_spark():
                if not running.in_batch and not self.status["isTriggerActive"]:
                    return
            time.sleep(0.02)

    def _stop(self) -> None:
        with suppress(SparkGoneError), asking_spark():  # then nothing runs any more, which is what was wanted
            super().stop()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Ask Spark; that the query has failed, or Spark itself is gone, is told as the run knows it."""
        try:
            with asking_spark():
                yield
        except StreamingQueryException as error:
            self._finish()
            raise self._known or failure_of(str(error)) from error
        except SparkGoneError as error:
            self._finish()
            raise self._known or error from error.__cause__

    def _finish(self) -> None:
        if self.running is not None:
            self.running.finish(self.running.drain_timeout)

    @property
    def _known(self) -> HoldfastError | None:
        return None if self.running is None else self.running.failure
