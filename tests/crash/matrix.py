"""`make matrix`: run every case of the fault matrix on real processes and print the table."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests import class_archive
from tests.crash.cases import CASES, SINKS, work_for
from tests.crash.scenarios import Case
from tests.servers.cassandra import CassandraServer
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_cluster import KafkaCluster
from tests.servers.postgres import PostgresServer


class Servers:
    """The servers of one run of the matrix, each started when the first case needs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: dict[tuple[str, bool], Any] = {}

    def __call__(self, name: str, mortal: bool) -> Any:
        """One to share, or one that may be killed."""
        if (name, mortal) not in self._started:
            server = self._started[name, mortal] = self._make(name, self._folder / f"{name}-{mortal}")
            server.start()
        return self._started[name, mortal]

    def _make(self, name: str, folder: Path) -> Any:
        if name == "postgres":
            return PostgresServer(fsync="off")  # no case cuts the power
        made: dict[str, Any] = {"kafka": KafkaBroker, "kafka_cluster": KafkaCluster, "cassandra": CassandraServer}
        return made[name](folder)

    def stop(self) -> None:
        """End them."""
        for (name, _), server in self._started.items():
            if name == "postgres":
                server.close()
            elif name == "kafka_cluster":
                server.stop()
            else:
                server.stop(kill=True)


def run(case: Case, servers: Servers) -> str | None:
    """None when the case holds, else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-") as folder:
        try:
            with work_for(case, Path(folder) / "work", servers) as work:
                case.scenario(work)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return str(error) or "assertion failed"
    return None


def main() -> int:
    """Run all, or those whose id contains the first argument; print a table; 1 when any failed."""
    class_archive.use()
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-servers-") as folder:
        servers = Servers(Path(folder))
        try:
            return run_all(servers)
        finally:
            servers.stop()


def run_all(servers: Servers) -> int:
    """1 when any failed."""
    wanted = [case for case in CASES if len(sys.argv) < 2 or sys.argv[1] in case.id]
    results: dict[str, str | None] = {}
    for number, case in enumerate(wanted, 1):
        begin = time.monotonic()
        results[case.id] = run(case, servers)
        verdict = "ok" if results[case.id] is None else "FAILED"
        print(f"[{number}/{len(wanted)}] {case.id}: {verdict} ({time.monotonic() - begin:.0f} s)", flush=True)
        if results[case.id]:
            print(results[case.id], flush=True)
    print_table(wanted, results)
    failed = sum(1 for result in results.values() if result is not None)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


def print_table(cases: list[Case], results: dict[str, str | None]) -> None:
    """One row a point, one column a sink, each way with its outcome."""
    table = Table("point", *SINKS, show_lines=True)
    for point, title in sorted({(case.point, case.title) for case in cases}):
        cells = [
            ", ".join(
                f"{case.way} {'✓' if results[case.id] is None else '✗'}"
                for case in cases
                if point in case.points and case.sink == sink
            )
            for sink in SINKS
        ]
        table.add_row(f"{point} {title}", *cells)
    Console(width=200).print(table)


if __name__ == "__main__":
    sys.exit(main())
