"""Named places where a test can make the process fail, in drivers and in executors.

Off unless armed by environment: `HOLDFAST_FAULT=point=mode[@n][,point=mode[@n]...]`. Modes: `error` raises before the
effect, `kill` ends the process with SIGKILL before it, `lost` lets the effect happen and then raises, `kill-after` lets
it happen and then kills, `stop` and `stop-after` pause the process with SIGSTOP until somebody continues it. `@n` means
the n-th time this process gets there (default 1). With `HOLDFAST_FAULT_ONCE` set to a folder, a fault fires once over
all processes that share it, so that a retry can succeed.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import ConfigError, InjectedFault

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
}
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
MODES = ("error", "kill", "lost", "kill-after", "stop", "stop-after")
VARIABLE, ONCE = "HOLDFAST_FAULT", "HOLDFAST_FAULT_ONCE"
_hits: Counter[str] = Counter()


def parse(text: str) -> dict[str, tuple[str, int]]:
    """{point: (mode, n)} of the variable's text."""
    armed: dict[str, tuple[str, int]] = {}
    for part in filter(None, text.split(",")):
        point, _, rest = part.partition("=")
        mode, _, count = rest.partition("@")
        if point not in POINTS or mode not in MODES or not (count or "1").isdigit():
            raise ConfigError(
                f"{VARIABLE}: {part!r} is not point=mode[@n]; points: {', '.join(POINTS)}; modes: {', '.join(MODES)}"
            )
        armed[point] = (mode, int(count or 1))
    return armed


def _armed(name: str) -> str | None:
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    mode, count = parse(text).get(name, ("", 0))
    if not mode:
        return None
    _hits[name] += 1
    if _hits[name] != count:
        return None
    once = os.environ.get(ONCE)
    if once:
        try:
            Path(once, name).touch(exist_ok=False)
        except FileExistsError:
            return None
    return mode


@contextmanager
def point(name: str) -> Iterator[None]:
    """Wrap one external effect; does nothing unless this point is armed."""
    mode = _armed(name)
    if mode == "error":
        raise InjectedFault(f"fault {name}: raised before the effect")
    if mode in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[mode])
    yield
    if mode == "lost":
        raise InjectedFault(f"fault {name}: done, but the answer was lost")
    if mode is not None and mode.endswith("-after"):
        os.kill(os.getpid(), _SIGNALS[mode.removesuffix("-after")])
