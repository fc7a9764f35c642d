"""Runs a pipeline until it ends or is told to: signals, restarts, and the exit code that says what to do next."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast.errors import FIX, OPERATOR, RESTART, ConfigError, EngineError, HoldfastError, first_line
from holdfast.pipeline.model import Restart
from holdfast.spark.query import HoldfastQuery
from holdfast.spark.stream import HoldfastWriter

logger = logging.getLogger("holdfast")
#: exit codes: what the error's action is; ended well is 0, and a second signal ends with 128 and its number
CODES = {RESTART: 1, OPERATOR: 2, FIX: 3}
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Built(Protocol):
    """What can be run: a job file or a Python file."""

    def session(self) -> SparkSession:
        """The Spark it runs on."""

    def writer(self, spark: SparkSession, *, take_over: bool = False) -> HoldfastWriter:
        """Everything but the start."""


class Watcher(Protocol):
    """Shows what goes on."""

    def started(self, query: HoldfastQuery, writer: HoldfastWriter) -> None:
        """A run has begun."""

    def look(self) -> None:
        """Called about twice a second."""

    def say(self, sentence: str) -> None:
        """Something a person should read."""

    def close(self) -> None:
        """The end."""


class _AtOnce(BaseException):
    """A second signal: wait for nothing any more. Not an Exception: nobody may take it for a failure of his own."""


class Runner:
    """One `holdfast run`."""

    def __init__(
        self,
        built: Built,
        watcher: Watcher,
        *,
        restart: Restart | None = None,
        take_over: bool = False,
        before: Callable[[HoldfastWriter], None] | None = None,
    ) -> None:
        """`before` is called with what would be started, ahead of the first start; it raises to refuse it."""
        self._built, self._watcher, self._take_over = built, watcher, take_over
        self._before = before
        self._restart = restart or Restart(attempts=0)
        self._signal: int | None = None
        self._signals = 0

    @property
    def stopping(self) -> bool:
        """Whether a signal has come."""
        return self._signal is not None

    def run(self) -> int:
        """The exit code."""
        failures = 0
        with self._listening():
            while True:
                try:
                    self._once(failures)
                    return 0
                except HoldfastError as error:
                    failures = 1 if self._got_further else failures + 1
                    if not self._again(error, failures):
                        return CODES.get(error.action, 1)
                except _AtOnce:
                    self._watcher.say("stopped at once; the next start finishes or undoes what is left")
                    return 128 + (self._signal or signal.SIGTERM)
                finally:
                    self._watcher.close()

    def _again(self, error: HoldfastError, failures: int) -> bool:
        """Say what went wrong; wait, and True if it is worth another try."""
        attempts = self._restart.attempts
        if error.action != RESTART or failures > attempts or self.stopping:
            self._watcher.say(f"{type(error).__name__} ({error.action}): {error}")
            return False
        wait = self._restart.wait(failures)
        told = f"{type(error).__name__}: {first_line(error)}"
        self._watcher.say(f"{told}; starting again in {wait:g} s, attempt {failures} of {attempts}")
        end = time.monotonic() + wait
        while not self.stopping and time.monotonic() < end:
            time.sleep(0.1)
        return not self.stopping

    # -- one run ----------------------------------------------------------------------------------------------------

    _got_further = False
    _complete: int | None = None

    def _once(self, failures: int) -> None:
        """Start, and wait for the end; raises why it failed."""
        self._got_further = False
        writer = self._prepared(failures)
        if writer is None:
            self._watcher.say("stopped before the query was started")
            return
        with building():
            query = writer.start()
        assert isinstance(query, HoldfastQuery)
        self._complete = _complete(query)
        self._watcher.started(query, writer)
        try:
            while not self.stopping:
                if query.awaitTermination(1):
                    return
                self._notice(query)
                self._watcher.look()
            self._watcher.say("stopping after the current checkpoint; a second signal stops at once")
            query.stop()
        except _AtOnce:
            query.stop(now=True)
            raise
        finally:
            self._notice(query)
            if query.isActive:
                query.stop(now=True)

    def _prepared(self, failures: int) -> HoldfastWriter | None:
        """What is to be started; None when a signal has come meanwhile.

        Nothing has begun by then. A signal for the whole process group ends Spark as well, and what that breaks is no
        error of the job.
        """
        try:
            with building():
                spark = self._built.session()
                self._listen()  # Spark has put a handler of its own in place of ours, which ends everything at once
                writer = self._built.writer(spark, take_over=self._take_over and failures == 0)
            if self._before is not None and not self.stopping:
                self._before(writer)
                self._before = None
        except HoldfastError as error:
            if not self.stopping:
                raise
            logger.info("while the query was built for a start that was called off: %s", first_line(error))
            return None
        return None if self.stopping else writer

    def _notice(self, query: HoldfastQuery) -> None:
        """A checkpoint was completed: failures in a row are counted anew."""
        now = _complete(query)
        self._got_further = self._got_further or (now is not None and now != self._complete)

    # -- signals ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _listening(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._listen()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _listen(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        self._signals += 1
        if self._signals == 2:
            raise _AtOnce
        if self._signals > 2:
            os._exit(128 + number)


def _complete(query: HoldfastQuery) -> int | None:
    """The last checkpoint that is complete in every sink; None when there is none, or the query has ended."""
    coordinator = None if query.running is None else query.running.coordinator
    return None if coordinator is None else coordinator.complete_through


@contextmanager
def building() -> Iterator[None]:
    """What Spark or the user's own code raises before the start is an error of the job."""
    try:
        yield
    except HoldfastError:
        raise
    except PySparkException as error:
        raise EngineError(f"Spark could not start the query: {first_line(error)}") from error
    except Exception as error:
        raise ConfigError(f"the job could not be built: {type(error).__name__}: {error}") from error
