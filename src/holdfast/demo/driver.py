"""The demo's victim: the Spark driver as a child process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time

from holdfast.demo.files import Folder
from holdfast.errors import HoldfastError

_SLOT = re.compile(r"(\d+)\.\d+\.json")


class Driver:
    """One driver process and its JVM, in a session of their own."""

    def __init__(self, folder: Folder, port: int) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._older = self._claimed()
        self.started = time.monotonic()
        #: when it claimed its generation or last decided a checkpoint
        self.progressed: float | None = None
        self._decisions = 0
        self.killed = False
        command = [sys.executable, "-m", "holdfast.demo.job", str(folder.root), str(port)]
        with folder.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder.root,
                env={**os.environ, "TMPDIR": str(folder.temporary)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the Python process, which is also its process group."""
        return self._process.pid

    def decisions(self) -> int | None:
        """How many checkpoints it has decided; None while it has not claimed a generation."""
        mine = self._claimed()
        if mine == self._older:
            return None
        names = _names(self._folder, "decisions")
        count = sum(1 for name in names if (match := _SLOT.fullmatch(name)) and int(match[1]) == mine)
        if self.progressed is None or count != self._decisions:
            self.progressed, self._decisions = time.monotonic(), count
        return count

    def kill(self) -> None:
        """SIGKILL to driver and JVM at once; safe from any thread and more than once."""
        with self._lock:
            if self._process.poll() is None:
                self.killed = True  # first: `check` must not take this for an end of its own
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def check(self) -> None:
        """Raise when it ended although nobody killed it."""
        code = self._process.poll()
        if code is not None and not self.killed:
            raise HoldfastError(
                f"the Spark driver ended by itself with code {code}; the end of its log:\n{tail(self._folder)}"
            )

    def finish(self, seconds: float = 20) -> None:
        """Let it end by itself, or end it."""
        self._folder.stop.touch()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def _claimed(self) -> int:
        return max((int(name) for name in _names(self._folder, "generations") if name.isdigit()), default=-1)


def _names(folder: Folder, kind: str) -> list[str]:
    try:
        return [path.name for path in (folder.checkpoint / "holdfast" / kind).iterdir()]
    except FileNotFoundError:
        return []


def tail(folder: Folder, lines: int = 15) -> str:
    """The end of the drivers' log."""
    text = folder.log.read_text(errors="replace") if folder.log.exists() else ""
    return "\n".join(text.splitlines()[-lines:])
