"""A real PostgreSQL for tests: the one that is shipped for newcomers' jobs, with a password that needs to be quoted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psycopg

from holdfast.testing.servers import postgres
from holdfast.testing.servers.postgres import USER, _children, binaries, wheels

__all__ = ["PASSWORD", "USER", "PostgresServer", "Standby", "_children", "binaries", "execute", "left_behind", "newest"]
PASSWORD = "s3cret/pass word"


class PostgresServer(postgres.PostgresServer):
    """Start, kill, restart; ended by its process id."""

    def __init__(self, *, installed: Path | None = None, **settings: str) -> None:
        super().__init__(PASSWORD, installed=installed, **settings)


def newest() -> Path:
    """The newer one of the wheel's two."""
    (folder,) = wheels("pginstall18")
    return folder


def execute(dsn: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """One statement, and its rows if it has some."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement, values or None)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


def left_behind(dsn: str) -> list[str]:
    """What is staged or prepared and not committed, and tables of earlier versions; staging itself stays for ever."""
    tables = execute(dsn, "SELECT relname FROM pg_class WHERE relname ~ '^stage_[^_]*(_[a-z]+)?$' AND relkind = 'r'")
    gids = execute(dsn, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    found = [row[0] for row in tables + gids]
    for (table,) in execute(dsn, "SELECT oid::regclass::text FROM pg_class WHERE relname = 'staged'"):
        found += [row[0] for row in execute(dsn, f"SELECT token FROM {table}")]
    return found


class Standby(PostgresServer):
    """A copy of a running server that follows it, until it is promoted."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(fsync="off")
        shutil.rmtree(self.data)
        self._run(
            [
                "pg_basebackup",
                "-D",
                str(self.data),
                "-d",
                primary.dsn(),
                "-R",
                "-X",
                "stream",
                "--no-sync",
                "-c",
                "fast",
            ]
        )

    def promote(self) -> None:
        """Take over; returns when it writes."""
        execute(self.dsn(), "SELECT pg_promote()")
