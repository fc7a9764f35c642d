"""Real processes: paused ones, killed ones, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.crash import warm

#: A driver process, or a run of one that may wait for the next.
Driver = subprocess.Popen[bytes] | warm.WarmRun


def end(process: Driver) -> None:
    """End a driver and everything it started, by process group, and wait until all of it is gone."""
    if isinstance(process, warm.WarmRun):
        assert warm.POOL is not None
        if process.poll() is not None and process.reusable:
            warm.POOL.give_back(process)
            return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
    for _ in range(200):
        if not _alive(process.pid):
            if isinstance(process, warm.WarmRun) and warm.POOL is not None:
                warm.POOL.forget(process)
            return
        time.sleep(0.05)
    raise AssertionError(f"process group {process.pid} does not end")


def _alive(group: int) -> bool:
    """Whether a process of this group still runs; a zombie does not, however long init takes to reap it."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = path.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(number) == group and state not in "ZX":
            return True
    return False


def wait_until_stopped(process: Driver, timeout: float = 180) -> None:
    """Wait until the driver has paused itself (state T)."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            return
        assert state != "Z" and process.poll() is None, "the driver ended before it came to the point"
        time.sleep(0.1)
    raise AssertionError("the driver never came to the point where it should pause")


def state_of(process_id: int) -> str | None:
    """The kernel's letter for the state of a process, None when there is none."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def parent_of(process_id: int) -> int:
    """The process that started it."""
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])


def command_of(process_id: int) -> str:
    """Its command line, empty when there is none any more."""
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descendants(process_id: int) -> list[int]:
    """All that it has started and that lives, and what that has started, parents first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(path.parent.name))
    found = list(children.get(process_id, []))
    for pid in found:
        found += children.get(pid, [])
    return found


def ancestors(process_id: int) -> Iterator[int]:
    """Who started it, and who started that, up to the first process of all."""
    while process_id > 1:
        process_id = parent_of(process_id)
        yield process_id


def kill_all(process_ids: Iterable[int]) -> None:
    """SIGKILL for each that is still there."""
    for pid in process_ids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stopped_children(process: Driver) -> list[int]:
    """Workers of this driver that have paused themselves; Spark puts them in a process group of their own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state == "T" and int(session) == process.pid and int(path.parent.name) != process.pid:
            found.append(int(path.parent.name))
    return found


def wait_for(condition: Callable[[], Any], what: str, timeout: float = 180) -> None:
    """Until the condition holds; a deadline, never a guess."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout:.0f} s in vain: {what}"
        time.sleep(0.1)
