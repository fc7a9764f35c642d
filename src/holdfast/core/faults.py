"""Named places where a test can make the process fail, in drivers and in executors.

Off unless armed by environment: `HOLDFAST_FAULT=point[:which]=mode[@n][,...]`. Modes: `error` raises before the effect,
`kill` ends the process with SIGKILL before it, `lost` lets the effect happen and then raises, `kill-after` lets it
happen and then kills, `stop` and `stop-after` pause the process with SIGSTOP until somebody continues it, `hang` never
gets to the effect, as an endpoint that does not answer. `which` is the sink of a `commit.sink` or `commit.record`;
without it any will do. `@n` means the n-th time this process gets there (default 1). With `HOLDFAST_FAULT_ONCE` set to
a folder, a fault fires once over all processes that share it, so that a retry can succeed; a file of the fault's name
then says that it fired, and which other points this process was inside of. `HOLDFAST_FAULT=@FILE` takes the faults from
the first line of a file and the folder from its second, each time anew: for processes that outlive their faults.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import ConfigError, InjectedFault, StorageError

#: name -> what a crash there leaves (the rows of the fault matrix)
POINTS = {
    "task.write": "1 in the middle of a task",
    "task.prepared": "2 a task pre-committed, its answer not yet with the driver",
    "decision": "2 all tasks prepared, no decision (after: 3 decision durable, nothing committed)",
    "commit.sink": "4 k of n sinks committed (after: 5 committed, answer lost)",
    "commit.subtask": "4 k of n subtasks delivered (after: 5 sent, mark missing)",
    "commit.mark": "5 delivered, before the committer's mark",
    "commit.record": "5 committed at the endpoint, before the commit record",
    "batch.return": "6 sinks committed, Spark's commit missing",
    "offsets": "7 before the commit of group offsets",
    "recovery": "8 inside recovery",
    "repair": "10 lost rows produced again, before the repair record",
    "log.write": "18 the disk is full at a write of the log",
}
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
MODES = ("error", "kill", "lost", "kill-after", "stop", "stop-after", "hang")
VARIABLE, ONCE = "HOLDFAST_FAULT", "HOLDFAST_FAULT_ONCE"
#: folder of HOLDFAST_FAULT_ONCE (or nothing) + point -> how often this process came there while it was armed
_hits: Counter[str] = Counter()
#: the points that threads of this process are inside of, while anything is armed
_inside: Counter[str] = Counter()
_counting = threading.Lock()


class InjectedStorageFault(InjectedFault, StorageError):
    """What a store raises that cannot be written; it goes the way of every other such error."""


def parse(text: str) -> dict[str, tuple[str, int]]:
    """{point or point:which: (mode, n)} of the variable's text."""
    armed: dict[str, tuple[str, int]] = {}
    for part in filter(None, text.split(",")):
        point, _, rest = part.partition("=")
        mode, _, count = rest.partition("@")
        if point.partition(":")[0] not in POINTS or mode not in MODES or not (count or "1").isdigit():
            raise ConfigError(
                f"{VARIABLE}: {part!r} is not point=mode[@n]; points: {', '.join(POINTS)}; modes: {', '.join(MODES)}"
            )
        armed[point] = (mode, int(count or 1))
    return armed


def _told() -> tuple[str, str]:
    """The faults to meet, and the folder where to leave word."""
    text = os.environ.get(VARIABLE, "")
    if not text.startswith("@"):
        return text, os.environ.get(ONCE, "")
    text, _, once = Path(text[1:]).read_text().partition("\n")
    return text, once


def _armed(text: str, once: str, name: str, which: str) -> str | None:
    armed = parse(text)
    for key in (name, f"{name}:{which}"):
        mode, count = armed.get(key, ("", 0))
        if not mode:
            continue
        with _counting:
            _hits[once + key] += 1
            now = _hits[once + key] == count
            others = sorted(point for point, times in _inside.items() if times)
        if now and _first(once, key, others):
            return mode
    return None


def _first(once: str, key: str, others: list[str]) -> bool:
    """Whether no process that shares the folder has come here before; leaves word that this one did."""
    if not once:
        return True
    try:
        with Path(once, key).open("x") as file:
            file.write(" ".join(others))
    except FileExistsError:
        return False
    return True


def _end(mode: str) -> None:
    """To this thread: sent to the process, another one may take it, and this one gets on for a while until it does."""
    signal.pthread_kill(threading.get_ident(), _SIGNALS[mode])


@contextmanager
def point(name: str, which: str = "") -> Iterator[None]:
    """Wrap one external effect; does nothing unless this point is armed."""
    if not os.environ.get(VARIABLE):
        yield
        return
    text, once = _told()
    mode = _armed(text, once, name, which)
    failure = InjectedStorageFault if name == "log.write" else InjectedFault
    if mode == "error":
        raise failure(f"fault {name}: raised before the effect")
    if mode in _SIGNALS:
        _end(mode)
    while mode == "hang":
        time.sleep(3600)
    with _counting:
        _inside[name] += 1
    try:
        yield
    finally:
        with _counting:
            _inside[name] -= 1
    if mode == "lost":
        raise failure(f"fault {name}: done, but the answer was lost")
    if mode is not None and mode.endswith("-after"):
        _end(mode.removesuffix("-after"))
