"""Trying again: the one loop for what a start, a sweep or the tasks of a batch do about an endpoint that is away."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.checkpoint.delivery import Standing
from holdfast.checkpoint.guard import guarded, hangs
from holdfast.checkpoint.loops import Loops
from holdfast.checkpoint.ports import Sink
from holdfast.core.retry import Retry
from holdfast.errors import HoldfastError, first_line

logger = logging.getLogger("holdfast")
Result = TypeVar("Result")
#: whether an error is worth another try: the error, how many there were, whether `retry` is not over yet
Worth = Callable[[BaseException, int, bool], bool]


@dataclass(frozen=True)
class Starting:
    """A sink that a start is busy with."""

    sink: Sink
    standing: Standing


@dataclass(frozen=True)
class Retrying:
    """How long, by which clock, and who ends the waits."""

    retry: Retry
    loops: Loops
    clock: Callable[[], float]
    #: what a start is about
    starting: dict[str, Starting] = field(default_factory=dict)

    def run(self, what: str, do: Callable[[], Result], worth: Worth) -> Result:
        """Do it again and again while that may help; a stop of the run ends it with the last error."""
        began, failures = self.clock(), 0
        while True:
            try:
                return do()
            except BaseException as error:
                failures += 1
                if not worth(error, failures, self.clock() - began < self.retry.seconds):
                    raise
                logger.warning("%s: %s", what, first_line(error))
                if self.loops.sleep(self.retry.wait(failures)):
                    raise

    def of_sink(self, what: str, do: Callable[[], Any], sink: Sink) -> None:
        """Something about one sink, while its endpoint is away; at once up if trying again cannot help."""

        def once() -> None:
            with guarded(sink, what):
                do()

        self.run(f"{what} of sink {sink.name} failed, trying again", once, _restart_helps)

    def at_start(self, what: str, do: Callable[[], Any], sink: Sink) -> None:
        """As `of_sink`; and what does not return is given up, with the sink's name, since the query waits for it."""
        began, doing = self.clock(), "starting" if what == "start" else what
        problems: list[str] = []

        def once() -> None:
            standing = Standing(doing, began, len(problems), problems[-1] if problems else None)
            self.starting[sink.name] = Starting(sink, standing)
            try:
                patience = self.retry.patience(self.clock() - began)
                if not self.loops.call(sink.name, do, patience, lambda: False):
                    raise hangs(sink, doing, began, self.clock())
            except Exception as error:
                problems.append(first_line(error))
                raise

        try:
            self.of_sink(what, once, sink)
        finally:
            del self.starting[sink.name]


def _restart_helps(error: BaseException, failures: int, in_time: bool) -> bool:
    return isinstance(error, HoldfastError) and error.action == "restart" and getattr(error, "again", True) and in_time
