"""Spark's driver as its Python workers see it: the JVM that started them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.spark.session import submitted

_PROC = Path("/proc")


@dataclass(frozen=True)
class Jvm:
    """A process, told apart from a later one of the same number by when it started."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return _started(self.pid) == self.started


def driver_of(worker: int) -> Jvm:
    """The JVM above a worker process: between them there may be the process that Spark forks workers from."""
    pid = _parent(worker)
    while _is_python(_command(pid)):
        pid = _parent(pid)
    return Jvm(pid, _started(pid) or "")


def _is_python(words: list[str]) -> bool:
    """Whether a process is one that workers are forked from: `python -m MODULE`, of Spark or of ours."""
    return Path(words[0]).name != "java" and "-m" in words


def refuse_speculation(jvm: Jvm) -> None:
    """A copy of a task that lost could write after the decision; told as far as command line and defaults file say."""
    if settings_of(jvm).get("spark.speculation", "false").lower() == "true":
        raise ConfigError(
            "spark.speculation=true runs the code of a task twice, and the losing copy can write after the checkpoint "
            "is decided: set spark.speculation=false for this application"
        )


def settings_of(jvm: Jvm) -> dict[str, str]:
    """Spark's settings, as far as command line and defaults file say."""
    found = submitted() if "PYSPARK_GATEWAY_PORT" not in os.environ else {}
    for word, value in pairwise(_command(jvm.pid)):
        if word in ("--conf", "-c") and "=" in value:
            key, _, setting = value.partition("=")
            found[key] = setting
    return found


def class_path(jvm: Jvm) -> list[Path]:
    """The folders in which its Java looks for files of settings, in order."""
    told = [value for word, value in pairwise(_command(jvm.pid)) if word in ("-cp", "-classpath", "--class-path")]
    # On YARN the environment says it, which workers have from their driver.
    text = told[-1] if told else os.environ.get("CLASSPATH", "")
    return [Path(entry) for entry in text.split(os.pathsep) if entry and Path(entry).is_dir()]


def _parent(pid: int) -> int:
    if _PROC.is_dir():
        return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return int(_ps(pid, "ppid"))


def _command(pid: int) -> list[str]:
    if _PROC.is_dir():
        return (_PROC / str(pid) / "cmdline").read_text().split("\0")
    return _ps(pid, "command").split()


def _started(pid: int) -> str | None:
    """When a process began, None when it is gone; one that nobody has waited for is."""
    if not _PROC.is_dir():
        return _ps(pid, "lstart") or None
    try:
        words = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if words[0] in "ZX" else words[19]


def _ps(pid: int, column: str) -> str:
    return subprocess.run(["ps", "-o", f"{column}=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
