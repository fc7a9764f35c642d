"""Waiting for a server that was just started."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable


def comes_up(process: subprocess.Popen[bytes], answers: Callable[[], bool], timeout: float) -> bool:
    """Whether it answers within so many seconds; a process that has ended is not waited for."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and process.poll() is None:
        if answers():
            return True
        time.sleep(0.1)
    return False
