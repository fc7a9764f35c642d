"""The list of checks, and what one of them finds.

A check is a function of the situation and, where it is about a sink or a source, of that one. It yields what is wrong,
or nothing. It changes nothing at an endpoint; what it must create to try something, it removes. An error of holdfast's
that it lets out is a finding too: the decisions of a start are made in one place, and a check only asks them earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from holdfast.errors import FIX

#: what a check is about when it is about no sink and no source
PIPELINE = None


class Level(StrEnum):
    """How bad it is."""

    #: as it should be
    OK = "ok"
    #: the guarantee breaks, or rows stop, when something else goes wrong
    WARNING = "warning"
    #: the start would fail, or rows would be lost or doubled as things are: `holdfast run` refuses
    FATAL = "fatal"


@dataclass(frozen=True)
class Problem:
    """What a check says is wrong; without a remedy, the check's own."""

    level: Level
    text: str
    remedy: str = ""
    #: of the errors: restart, operator or fix
    action: str = FIX
    #: another check's name, where one look answers two questions
    check: str = ""


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    check: str
    level: Level
    #: the sink, the source, or the pipeline
    subject: str
    text: str
    remedy: str = ""
    action: str = FIX

    def document(self) -> dict[str, Any]:
        """Plain data, with the place in the docs."""
        return {**asdict(self), "docs": f"docs/checks.md#{self.check}"}


Function = Callable[..., Iterable[Problem]]


@dataclass(frozen=True)
class Check:
    """One entry of the list."""

    name: str
    #: the class of the sinks or sources it is about; None: the pipeline
    about: type | None
    #: what is so when nothing is wrong
    good: str
    remedy: str
    #: None: found by another one, or before the query can be built
    function: Function | None


#: in the order in which they are done
CHECKS: dict[str, Check] = {}


def check(name: str, about: type | None = PIPELINE, *, remedy: str) -> Callable[[Function], Function]:
    """Add a function to the list; the first line of its docstring says what is so when nothing is wrong."""

    def add(function: Function) -> Function:
        good = (function.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        CHECKS[name] = Check(name, about, good, remedy, function)
        return function

    return add


def also(name: str, about: type | None, good: str, *, remedy: str) -> None:
    """Add a name to the list under which something else than a function of its own finds problems."""
    CHECKS[name] = Check(name, about, good, remedy, None)


def warning(text: str, remedy: str = "", *, check: str = "") -> Problem:
    """It breaks when something else does."""
    return Problem(Level.WARNING, text, remedy, check=check)


def fatal(text: str, remedy: str = "", *, check: str = "") -> Problem:
    """It does not work as it is."""
    return Problem(Level.FATAL, text, remedy, check=check)
