"""Errors on their way through Spark, which keeps of a Python error no more than its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import StreamingQueryException

from holdfast import errors
from holdfast.errors import EngineError, HoldfastError, SinkError

#: A line of a traceback, put there as a note, that tells the driver which error it was.
MARK = "holdfast-error:"
_LINE = re.compile(rf"{MARK}(\{{.*\}})")
#: What Spark says of a job that somebody ended.
_CANCELLED = re.compile(r"SPARK_JOB_CANCELLED|Job \d+ cancelled ")
#: The last line of a Python traceback inside Spark's text: the exception itself.
_EXCEPTION = re.compile(r"^((?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit)\b.*)$", re.M)


class QueryFailedError(EngineError, StreamingQueryException):
    """The query failed for a reason that is not holdfast's: Spark's own, or that of code in the query."""

    def __init__(self, message: str) -> None:
        EngineError.__init__(self, message)
        self._message = message

    def __str__(self) -> str:
        """The reason, without Spark's stack traces, which are in the cause."""
        return self._message


class SparkGoneError(EngineError):
    """Spark's Java process has ended under a query."""

    def __init__(self) -> None:
        super().__init__(
            "Spark's Java process has ended: a crash, or the system killed it for its memory. Start the query again, "
            "with more memory if that was it (spark.driver.memory): what was decided is delivered first"
        )


@contextmanager
def asking_spark() -> Iterator[None]:
    """A call into Spark; an error of Spark's own goes up as it is.

    When Java dies in the middle of one, its end of a socket is closed, resets what it is sent, or has ended early.
    """
    try:
        yield
    except Py4JJavaError:
        raise
    except (Py4JError, ConnectionError, EOFError) as error:
        raise SparkGoneError from error


class StoppedError(Exception):
    """Tells Spark, in as few words as it understands, that its own stop has interrupted the batch.

    It looks for the interrupt in the text with a pattern that overflows the stack of its thread when the text is long.
    """

    def __init__(self) -> None:
        super().__init__("py4j.protocol.Py4JJavaError: An error occurred while calling: java.lang.InterruptedException")


@contextmanager
def marked() -> Iterator[None]:
    """In a task: leave word for the driver of which error this is."""
    try:
        yield
    except HoldfastError as error:
        known = next(c.__name__ for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c)
        told = {"error": known, "message": str(error), "again": getattr(error, "again", True)}
        error.add_note(MARK + json.dumps(told))
        raise


@contextmanager
def restored() -> Iterator[None]:
    """On the driver: raise what was raised in the task, with Spark's error as its cause."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        found = from_text(str(error))
        if found is None:
            raise
        raise found from error


def interrupted(error: BaseException) -> bool:
    """Whether this is Spark stopping the query: it must see its own error again, or it takes the stop for a failure."""
    return "InterruptedException" in str(error) or "ClosedByInterrupt" in str(error)


def cancelled(error: BaseException) -> bool:
    """Whether a job of Spark was cancelled; an error of ours may be around its own."""
    while not _CANCELLED.search(str(error)):
        if error.__cause__ is None:
            return False
        error = error.__cause__
    return True


def for_spark(error: Exception, *, over: bool, stopping: bool, at_once: bool = False) -> Exception:
    """What Spark is told of an error that ended a batch: the error, or in few words that or what met its stop.

    `over`: Spark does not count the query as active any more, which a stop says before it cancels the batch's job and
    then interrupts its thread; either may come first. `stopping`: our own stop has begun. `at_once`: and it was told to
    wait for nothing, so that whatever its batch waited for ends with an error that is nobody's.
    """
    if over and at_once:
        return StoppedError()
    if (over and cancelled(error)) or (interrupted(error) and (stopping or not isinstance(error, HoldfastError))):
        return StoppedError()
    return EngineError(f"the query failed while it was stopped: {reason(error)}") if over else error


def from_text(text: str) -> HoldfastError | None:
    """The error that a task left word of, if this is Spark's text about it."""
    matches = _LINE.findall(text)
    if not matches:
        return None
    try:
        told = json.loads(matches[-1])
        kind = getattr(errors, told["error"])
        if issubclass(kind, SinkError):
            return SinkError(told["message"], again=bool(told["again"]))
        made = kind(told["message"])
        return made if isinstance(made, HoldfastError) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # Spark cut the line: its own text must do


#: What Spark says when another driver wrote into its part of the checkpoint location, between two looks or at once. To
#: one of these it adds the advice to delete what is there: that would lose rows.
_NOT_ALONE = re.compile(
    r"CONCURRENT_STREAM_LOG_UPDATE|STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"
    r"|Multiple streaming (?:jobs detected|queries are concurrently using)"
    r"|(?:FileAlreadyExists|Cannot overwrite an existing file).*/(?:offsets|commits)/\d"
)


def failure_of(text: str) -> HoldfastError:
    """Ours if it is ours, else one that is both: what code expects of Spark, and what it may expect of us."""
    why = reason(Exception(text))
    if _NOT_ALONE.search(text):
        why += (
            ". Another driver is at this checkpoint location, and Spark has noticed it first. Delete nothing there, "
            "whatever Spark says above: see that one driver is left, and start the query again"
        )
    return from_text(text) or QueryFailedError(f"the query failed: {why}")


def reason(error: BaseException) -> str:
    """What went wrong, in a line: Spark's texts begin with a sentence that says nothing."""
    found = _EXCEPTION.findall(str(error))
    return found[-1] if found else errors.first_line(error)
