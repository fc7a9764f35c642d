"""Between Spark's short-lived workers and the process beside the driver: one line of JSON each way, over a socket.

The socket is a file in a folder that only this user can enter, and its name says whose it is: which JVM, which
checkpoint location.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.doors.jvm import Jvm
from holdfast.errors import EngineError, HoldfastError
from holdfast.spark.failures import MARK, from_text, marked

MODULE = "holdfast.doors.beside"
#: A reply that says: this process has ended its run, start another one.
AGAIN = "again"
#: Processes that this worker has started; asked after now and then, so that none that has ended stays a zombie.
_started: list[subprocess.Popen[bytes]] = []
_GONE = (
    "holdfast's process beside the driver has ended ({}). When the query is started again, what is decided is "
    "delivered, and the rest is undone"
)


def folder() -> Path:
    """Where the sockets are; nobody else may enter."""
    path = Path(tempfile.gettempdir(), f"holdfast-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise EngineError(
            f"{path} must be a folder of this user that nobody else can enter, since whoever can reaches the process "
            "that decides checkpoints: remove it, or set TMPDIR to a folder of your own"
        )
    return path


def address(jvm: Jvm, location: str) -> Path:
    """The socket of one query."""
    name = hashlib.sha256(f"{jvm.pid} {jvm.started} {location}".encode()).hexdigest()[:24]
    return folder() / f"{name}.sock"


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """One worker at a time looks for the process, and starts it."""
    with place.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start(place: Path, told: Mapping[str, Any]) -> None:
    """Start the process, and wait until it listens; what it has to know goes by a pipe, as it may hold secrets."""
    _started[:] = [process for process in _started if process.poll() is None]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON_WORKER_FACTORY")}
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        process_group=0,  # Spark ends the group of its workers when it does not need them any more
    )
    _started.append(process)
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        process.stdin.write(json.dumps(told).encode())
        process.stdin.close()
        if process.stdout.readline() != b"ready\n":
            raise EngineError("holdfast's process beside the driver did not start: its words are in the driver's log")


def ask(place: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Send a request and wait for the answer; raises what the process raised, and ConnectionError when it is gone."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(place))
        with sock.makefile("rwb") as stream:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            line = stream.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("no answer")
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise from_text(reply["error"]) or EngineError(reply["error"])
    return reply


def failed(error: BaseException) -> dict[str, Any]:
    """An error as a reply."""
    if not isinstance(error, HoldfastError):
        error = EngineError(f"holdfast's process beside the driver failed: {type(error).__name__}: {error}")
    try:
        with marked():
            raise error
    except HoldfastError as known:
        return {"error": next(note for note in reversed(known.__notes__) if note.startswith(MARK))}


def gone(error: OSError) -> EngineError:
    """The process does not answer."""
    return EngineError(_GONE.format(error))
