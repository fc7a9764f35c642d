"""A work folder whose sinks are files, tables of PostgreSQL and tables of Cassandra, alone or under one decision."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.testing.audit import AuditReport, audit
from tests.crash.harness import Work
from tests.crash.processes import Driver
from tests.crash.stores import Cassandra, Files, Postgres, Store
from tests.crash.watch import Watch
from tests.servers.postgres import execute

#: Gives a server by its name ("kafka", "postgres", "cassandra").
Servers = Callable[[str], Any]
#: The endpoints of each kind of work; the ledger mode has two tables, of which one can be committed without the other.
STORES = {
    "files": ("files",),
    "postgres": ("ledger", "ledger"),
    "postgres-log": ("log",),
    "postgres-two-phase": ("two-phase",),
    "cassandra": ("cassandra",),
    "stores": ("files", "ledger", "two-phase", "cassandra"),
    #: see tests.crash.three_work
    "three": ("kafka", "ledger", "files"),
}


class StoresWork(Work):
    """One test's pipeline from files into stores, each watched by a reader of its own."""

    def __init__(self, folder: Path, sink: str, servers: Servers) -> None:
        super().__init__(folder, sink)
        self.servers = servers
        self.name = f"crash-{uuid.uuid4().hex[:8]}"
        self._dsn: str | None = None
        self.stores = [self.make(kind, number) for number, kind in enumerate(STORES[sink])]
        self._watches = [Watch(store) for store in self.stores if store.watched]

    def make(self, kind: str, number: int) -> Store:
        """One endpoint, empty."""
        if kind == "files":
            return Files(self.folder / "files")
        if kind == "cassandra":
            return Cassandra(self.servers("cassandra"), f"orders_{uuid.uuid4().hex[:8]}")
        return Postgres(self.database(), f"orders_{number}", kind)

    def database(self) -> str:
        """The URL of this work's own database."""
        if self._dsn is None:
            self._dsn = self.servers("postgres").new_database()
        return self._dsn

    def start(self, fault: str = "", **spec: Any) -> Driver:
        """See Work."""
        stores = [(store.kind, store.options) for store in self.stores]
        return super().start(fault, name=self.name, stores=stores, **spec)

    def audits(self) -> list[AuditReport]:
        """See Work."""
        return [audit([store.expected(number) for number in self.sent()], store.rows()) for store in self.stores]

    def held(self) -> list[Counter[Any]]:
        """See Work."""
        return [Counter(store.rows()) for store in self.stores]

    def copy_endpoint(self) -> Callable[[], None]:
        """See Work; readers see rows vanish when it comes back, so they end here."""
        for watch in self._watches:
            watch.stop()
        copies = [store.copy(self.name) for store in self.stores]

        def bring_back() -> None:
            for copy in copies:
                copy()

        return bring_back

    def assert_clean(self, *, resent: int = 0) -> None:
        """Every row once in every store, at all times; nothing pending, nothing left behind."""
        super().assert_clean(resent=resent)
        for store in self.stores:
            store.assert_nothing_left(self.name, self.checkpoints)
        for watch in self._watches:
            watch.assert_nothing_wrong()

    def close(self) -> None:
        """End the readers and drop the database."""
        for watch in self._watches:
            watch.stop()
        if self._dsn is not None:
            server = self.servers("postgres")
            name = self._dsn.rpartition("/")[2]
            for (gid,) in execute(self._dsn, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
                execute(self._dsn, f"ROLLBACK PREPARED '{gid}'")
            execute(server.dsn(), f"DROP DATABASE {name} WITH (FORCE)")
