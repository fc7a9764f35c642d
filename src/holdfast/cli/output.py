"""Everything a command prints goes through one object: text for people or JSON for programs."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, RenderableType

from holdfast.core.units import size as size
from holdfast.errors import ConfigError, HoldfastError, RecordError, StorageError

#: exit codes: as promised and healthy; not, or degraded; down, or the store does not answer; wrong use, a bad location
OK, BROKEN, IS_DOWN, USAGE = 0, 1, 2, 3
#: ... and a bug of ours
BUG = 70
#: wide enough for every table of ours, so that a pipe gets one line a row
_PIPE_WIDTH = 220

LocationArgument = Annotated[
    str, typer.Argument(help="The checkpoint location: a path or a URL, as given to write_stream.", metavar="LOCATION")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


class _Debugging:
    """Whether errors come with their traceback: --debug, or HOLDFAST_DEBUG in the environment."""

    on = bool(os.environ.get("HOLDFAST_DEBUG"))

    def show(self, error: BaseException) -> None:
        """The traceback, if it is wanted."""
        if self.on:
            traceback.print_exception(error, file=sys.stderr)


debugging = _Debugging()


class Output:
    """Text on a terminal, or one JSON document on standard output; errors are one line on standard error."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self._out = _console(stderr=False)
        self._err = _console(stderr=True)

    @property
    def progress(self) -> Console:
        """Where a long command shows how far it is; a JSON document has standard output for itself."""
        return self._err if self.json else self._out

    def result(self, document: Mapping[str, Any], text: Callable[[], RenderableType]) -> None:
        """The answer of a command, in the form that was asked for."""
        if self.json:
            sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")
            sys.stdout.flush()
        else:
            self._out.print(text())

    def error(self, message: str, kind: str = "Error") -> None:
        """One line on standard error."""
        line = " ".join(message.split())
        if self.json:
            sys.stderr.write(json.dumps({"error": kind, "message": line}) + "\n")
        else:
            self._err.print(f"error: {line}", style="red", markup=False, highlight=False, soft_wrap=True)

    def exit(self, code: int) -> NoReturn:
        """End the command."""
        raise typer.Exit(code)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_PIPE_WIDTH)


@contextmanager
def reporting(*, json: bool) -> Iterator[Output]:
    """Give a command its output, and turn errors we know into one line and an exit code."""
    out = Output(json=json)
    try:
        yield out
    except HoldfastError as error:
        debugging.show(error)
        # The problems of a job file stand in lines of their own, as editors and terminals find their places then.
        alone = getattr(error, "each_line_alone", False) and not json
        for message in str(error).splitlines() if alone else [str(error)]:
            out.error(message, type(error).__name__)
        if isinstance(error, StorageError) and not error.reached:
            raise typer.Exit(IS_DOWN) from None
        bad_location = isinstance(error, ConfigError | StorageError) and not isinstance(error, RecordError)
        raise typer.Exit(USAGE if bad_location else BROKEN) from None
    except OSError as error:
        debugging.show(error)
        out.error(str(error), type(error).__name__)
        raise typer.Exit(USAGE) from None


@contextmanager
def reporting_bugs() -> Iterator[None]:
    """An error that nobody foresaw is one line, too, and says how to find out more."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  the last one who can say anything
        debugging.show(error)
        more = "" if debugging.on else "; with --debug, where it happened"
        told = f"{type(error).__name__}: {error}. This is a bug in holdfast: please tell us{more}"
        Output(json="--json" in sys.argv).error(told, type(error).__name__)
        sys.exit(BUG)


def moment(milliseconds: int | None) -> str:
    """A time of the log, in local time."""
    if milliseconds is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


def age(milliseconds: int | None) -> str:
    """How long ago that was."""
    if milliseconds is None:
        return "-"
    seconds = max(0, int(time.time() - milliseconds / 1000))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def phases(durations: Mapping[str, float]) -> str:
    """Duration by phase."""
    return " ".join(f"{name} {seconds:.2f}s" for name, seconds in durations.items()) or "-"
