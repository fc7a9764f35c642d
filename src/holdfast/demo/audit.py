"""The demo's verdict, from the rows themselves: what is in the files went in, what is at the endpoints came out."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass

from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.status import read_status
from holdfast.checkpoint.storage import open_storage
from holdfast.core.audit import AuditReport, audit
from holdfast.demo.files import Folder, Order, read_orders


@dataclass(frozen=True)
class DemoAudit:
    """What was found; `problems` is empty when everything is as promised."""

    sqlite: AuditReport
    endpoint: AuditReport
    checkpoints: int
    generations: int
    pending: int
    log_files: int
    damaged: tuple[str, ...]

    @property
    def problems(self) -> list[str]:
        """What is not as promised, one sentence each."""
        found = [f"{name}: {report}" for name, report in self.reports.items() if not report.ok]
        if self.pending:
            found.append(f"{self.pending} checkpoints are still pending")
        if self.log_files:
            found.append(f"{self.log_files} write-ahead files are left, and nothing will deliver them")
        return found + list(self.damaged)

    @property
    def reports(self) -> dict[str, AuditReport]:
        """The two endpoints."""
        return {"SQLite": self.sqlite, "HTTP endpoint": self.endpoint}


def audit_folder(folder: Folder) -> DemoAudit:
    """Read every row back, and the log; needs nothing but the files."""
    sent = list(read_orders(folder.source, "*.json"))
    status = read_status(str(folder.checkpoint))
    return DemoAudit(
        sqlite=audit(sent, read_database(folder)),
        endpoint=audit(sent, read_orders(folder.endpoint, "*.jsonl")),
        checkpoints=0 if status.last_decided is None else status.last_decided + 1,
        generations=0 if status.owner is None else status.owner.generation + 1,
        pending=max((sink.checkpoints for sink in status.pending), default=0),
        log_files=count_log_files(folder),
        damaged=tuple(damage.problem for damage in status.damaged),
    )


def read_database(folder: Folder) -> list[Order]:
    """The rows in SQLite."""
    with closing(sqlite3.connect(folder.database, timeout=60)) as connection:
        return connection.execute("SELECT id, customer, cents FROM orders").fetchall()


def count_database(folder: Folder) -> int:
    """How many rows SQLite shows now; none as long as there is no table."""
    if not folder.database.exists():
        return 0
    with closing(sqlite3.connect(folder.database, timeout=60)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'orders'").fetchone():
            return 0
        return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])


def count_log_files(folder: Folder) -> int:
    """Write-ahead files not yet removed."""
    return len(open_storage(log_location(str(folder.checkpoint))).walk("wal"))
