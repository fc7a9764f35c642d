"""Who ran a pipeline and how it ended, from `generations/` and `runs/`: read only, and nothing is decided by it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint import records
from holdfast.checkpoint.pulse import COMMAND, ENDED, FAILED, RUNNING, STARTING
from holdfast.checkpoint.storage import Storage
from holdfast.errors import RecordError

#: a driver without a sign of life for this many beats is gone, or, if its process is there, at least in trouble
SILENT_BEATS = 3
#: seconds after which a process that gives no sign of life is taken for another one that has its number now
SILENT_FOR_LONG = 300.0
#: seconds a driver may take to start before it is in trouble, or, seen from another machine, taken for dead
LONG_START = 600.0
#: beside those of a pulse: it said nothing of its end
DEAD, SILENT = "dead", "silent"


@dataclass(frozen=True)
class RunInfo:
    """One query run, as it told itself; times in milliseconds since the epoch."""

    generation: int
    state: str
    started: int
    #: its last sign of life
    at: int
    every: float = 5.0
    #: sink -> doing, since, failures, problem, may_lag
    sinks: Mapping[str, Any] = field(default_factory=dict)
    #: type, message and action
    error: Mapping[str, Any] | None = None
    #: not a query, but this command of holdfast
    command: str | None = None


@dataclass(frozen=True)
class Owner:
    """The driver of the newest query run."""

    generation: int
    host: str
    pid: int
    #: milliseconds since the epoch
    started: int
    #: None when nobody can tell: it ran on another host and never gave a sign of life
    alive: bool | None
    #: starting, running, silent, ended, failed or dead
    state: str = RUNNING
    #: its last sign of life, in milliseconds since the epoch
    seen: int | None = None


def read_run(storage: Storage, generation: int) -> RunInfo | None:
    """What a run told of itself; None when it told nothing, or what it told is damaged: nothing depends on it."""
    name = f"runs/{generation}.json"
    try:
        body = records.decode(storage.read(name), f"{storage.url}/{name}", "run")
        return RunInfo(
            generation,
            str(body["state"]),
            int(body["started"]),
            int(body["at"]),
            float(body.get("every", 5.0)),
            dict(body.get("sinks", {})),
            body.get("error"),
            body.get("command"),
        )
    except (FileNotFoundError, RecordError, KeyError, TypeError, ValueError):
        return None


def read_runs(storage: Storage) -> list[RunInfo]:
    """All that are kept, the oldest first."""
    numbers = sorted(int(n.removesuffix(".json")) for n in storage.names("runs") if n.removesuffix(".json").isdigit())
    found = (read_run(storage, number) for number in numbers)
    return [run for run in found if run is not None]


def owner_of(body: Mapping[str, Any], generation: int, run: RunInfo | None, now: float | None = None) -> Owner:
    """Judge from its claim and its last sign of life whether a driver lives."""
    now = time.time() if now is None else now
    host, pid, started = str(body["host"]), int(body["pid"]), int(body["started"])
    seen = None if run is None else run.at
    here = lives(pid) if host == socket.gethostname() else None
    alive, state = _judge(run, here, now, started / 1000)
    return Owner(generation, host, pid, started, alive, state, seen)


def _judge(run: RunInfo | None, here: bool | None, now: float, started: float) -> tuple[bool | None, str]:
    if run is not None and run.state in (ENDED, FAILED):
        return False, run.state
    if here is False:
        return False, DEAD
    if run is None:
        late = now - started >= LONG_START
        if here is None:
            return (False, DEAD) if late else (None, STARTING)
        return True, SILENT if late else STARTING
    age = now - run.at / 1000
    if age <= SILENT_BEATS * run.every:
        return True, run.state
    return (True, SILENT) if here and age < SILENT_FOR_LONG else (False, DEAD)


def newest_driver(storage: Storage, generations: Iterable[int]) -> tuple[int, RunInfo | None] | None:
    """The newest generation that was a query's, and what it told; commands of holdfast claim generations too."""
    for number in sorted(generations, reverse=True):
        run = read_run(storage, number)
        if run is None or run.command is None:
            return number, run
    return None


def note_command(storage: Storage, generation: int, command: str) -> None:
    """Say that this generation was claimed by a command, and is over: else it would look like a driver that died."""
    now = int(time.time() * 1000)
    body = {"generation": generation, "state": ENDED, "started": now, "at": now, COMMAND: command}
    storage.replace(f"runs/{generation}.json", records.encode("run", records.new_nonce(), body))


def lives(pid: int) -> bool:
    """Whether a process of this number is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
