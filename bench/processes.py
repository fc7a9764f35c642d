"""Runs of a benchmark as processes of their own: started, waited for, and killed with all that is below them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_AT_MOST = 900.0


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[str]:
    """In a session of its own and without a terminal, for which Flink's client would ask; `log` gets what it prints."""
    with log.open("a") as out:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip


def wait(process: subprocess.Popen[str], log: Path, name: str) -> str:
    """Until it has ended, which it must do well; what it printed."""
    try:
        process.communicate(timeout=_AT_MOST)
    except BaseException:
        kill(process)
        raise
    told = log.read_text()
    if process.returncode:
        raise RuntimeError(f"{name} failed:\n{told[-4000:]}")
    return told


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL for it and everything below it: Python workers are in a process group of their own."""
    for pid in (process.pid, *children(process.pid, "")):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended with the one above
    process.communicate()


def children(pid: int, name: str) -> list[int]:
    """Processes of this name below another, at any depth."""
    parents, names = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        number = int(stat.parent.name)
        names[number] = text[text.index("(") + 1 : text.rindex(")")]
        parents[number] = int(text.rpartition(")")[2].split()[1])
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return sorted(p for p in below - {pid} if names[p].startswith(name))
