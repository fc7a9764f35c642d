"""Debian's pgbouncer in front of a PostgreSQL of the tests, in transaction mode."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from tests.servers.debian import program
from tests.servers.kafka import free_port
from tests.servers.postgres import PASSWORD, USER, PostgresServer


def binary() -> str:
    """Where pgbouncer is."""
    return program("pgbouncer")


class PgBouncer:
    """A pooler that lends a server's process out for one transaction; ended by its process id."""

    def __init__(self, server: PostgresServer, size: int = 3) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-pgbouncer-"))
        self.port = free_port()
        (self._folder / "users.txt").write_text(f'"{USER}" "{PASSWORD}"\n')
        (self._folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = scram-sha-256\n"
            f"auth_file = {self._folder}/users.txt\npool_mode = transaction\ndefault_pool_size = {size}\n"
            "ignore_startup_parameters = extra_float_digits\nserver_lifetime = 3600\n"
        )
        user = "nobody" if os.getuid() == 0 else None
        if user is not None:
            for path in (self._folder, *self._folder.iterdir()):
                shutil.chown(path, user)
        with (self._folder / "log").open("wb") as log:
            command = [binary(), str(self._folder / "pgbouncer.ini")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, user=user, start_new_session=True)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with psycopg.connect(self.dsn("postgres"), connect_timeout=2):
                    return
            except psycopg.OperationalError:
                time.sleep(0.1)
        raise AssertionError(f"pgbouncer did not start:\n{(self._folder / 'log').read_text()[-2000:]}")

    def dsn(self, database: str) -> str:
        """A URL of the pooler, with the password in it."""
        password = PASSWORD.replace("/", "%2F").replace(" ", "%20")
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def close(self) -> None:
        """Stop it and remove its files."""
        self._process.terminate()
        self._process.wait(10)
        shutil.rmtree(self._folder)
