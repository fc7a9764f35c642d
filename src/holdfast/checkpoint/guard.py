"""Errors of sinks, as the kernel passes them on: never a raw one of somebody's client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.errors import HoldfastError, SinkError


def described(sink: Any) -> str:
    """A sink for an error: its name, and where its endpoint is."""
    address = getattr(sink, "address", "")
    return f"sink {sink.name!r}" + (f" ({address})" if address else "")


def wrapped(sink: Any, phase: str, error: Exception) -> HoldfastError:
    """The error itself if it is one of ours, else a SinkError about it."""
    if isinstance(error, HoldfastError):
        return error
    # Java's traces are hundreds of lines; whoever wants one finds it in the cause.
    lines = [line for line in str(error).splitlines() if not line.startswith(("\tat ", "\t... "))]
    text = "\n".join(lines).strip() or "no reason given"
    made = SinkError(
        f"{described(sink)}: {phase} failed: {type(error).__name__}: {text}. Nothing is lost; if it lasts, see whether "
        "the endpoint works and can be reached from here",
        again=isinstance(error, OSError),
    )
    made.__cause__ = error
    return made


def hangs(sink: Any, doing: str, since: float, now: float) -> SinkError:
    """An endpoint does not answer, and nobody can go on without it."""
    return SinkError(
        f"{described(sink)} has been {doing} for {now - since:.0f} s without an answer, and no batch can begin before "
        "it returns. Nothing is lost: see whether the endpoint works and can be reached from here, then start the "
        "query again. retry=hf.Retry(for_=...) says how long to wait; timeouts in the sink's own calls end them sooner",
        again=False,
    )


@contextmanager
def guarded(sink: Any, phase: str) -> Iterator[None]:
    """Let no foreign exception of a sink out."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        raise wrapped(sink, phase, error) from error
