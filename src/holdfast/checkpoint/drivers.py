"""Everybody who ever claimed a checkpoint location, and who fenced whom: read only, for those who watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint import records
from holdfast.checkpoint.pulse import RUNNING, STARTING
from holdfast.checkpoint.reader import LogReader
from holdfast.checkpoint.runs import Owner, read_run
from holdfast.checkpoint.slots import Slots, claim_name
from holdfast.core.model import RecordKind
from holdfast.errors import RecordError

#: said nothing of its end, and somebody else took over
FENCED = "fenced"
GONE = "gone"


@dataclass(frozen=True)
class Driver:
    """One generation; times in milliseconds since the epoch."""

    generation: int
    #: starting, running, silent, ended, failed, dead, fenced or gone
    state: str
    host: str | None = None
    pid: int | None = None
    started: int | None = None
    #: its last sign of life
    seen: int | None = None
    #: not a query, but this command of holdfast
    command: str | None = None
    #: type, message and action
    error: Mapping[str, Any] | None = None
    #: the generation that closed this one for ever
    fenced_by: int | None = None


def read_drivers(log: LogReader, owner: Owner | None, *, last: int = 30) -> list[Driver]:
    """The newest generations, the newest first."""
    fences = _fences(log, last)
    return [_driver(log, number, owner, fences.get(number)) for number in sorted(log.generations())[-last:][::-1]]


def _driver(log: LogReader, number: int, owner: Owner | None, fenced_by: int | None) -> Driver:
    run = read_run(log.storage, number)
    try:
        claim = records.decode(log.storage.read(claim_name(number)), claim_name(number), "generation")
    except (FileNotFoundError, RecordError):
        claim = {}  # if it is the newest, the status says so
    if owner is not None and owner.generation == number:
        state = owner.state
    elif run is not None and run.state not in (STARTING, RUNNING):
        state = run.state
    else:
        state = GONE if fenced_by is None else FENCED
    return Driver(
        generation=number,
        state=state,
        host=claim.get("host"),
        pid=claim.get("pid"),
        started=claim.get("started"),
        seen=None if run is None else run.at,
        command=None if run is None else run.command,
        error=None if run is None else run.error,
        fenced_by=fenced_by,
    )


def _fences(log: LogReader, last: int) -> dict[int, int]:
    """Generation -> the one that filled its open slot with an abort."""
    slots, wanted = Slots(log.storage), sorted(log.generations())[-last:]
    try:
        folders = {number: slots.folder(number) for number in wanted}
    except (FileNotFoundError, RecordError):
        return {}  # a claim is missing or damaged, and the status says so
    newest: dict[int, int] = {}
    for folder in sorted(set(folders.values())):
        for name in log.storage.names(folder):
            number, _, rest = name.partition(".")
            slot = rest.removesuffix(".json")
            if number.isdecimal() and slot.isdecimal() and folders.get(int(number)) == folder:
                newest[int(number)] = max(newest.get(int(number), -1), int(slot))
    found = {}
    for generation, index in newest.items():
        name = f"{folders[generation]}/{generation}.{index}.json"
        try:
            body = records.decode(log.storage.read(name), name, *RecordKind)
        except (FileNotFoundError, RecordError):
            continue  # pruned meanwhile, or damaged, and the status says so
        if body["kind"] == RecordKind.ABORT and isinstance(body.get("by_generation"), int):
            found[generation] = body["by_generation"]
    return found
