"""`make matrix`: run every case of the fault matrix on real processes and print the table."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests import class_archive
from tests.crash.cases import CASES, SINKS, work_for
from tests.crash.scenarios import Case
from tests.servers.kafka import KafkaBroker


class Brokers:
    """The Kafka brokers of one run of the matrix, each started when the first case needs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: dict[bool, KafkaBroker] = {}

    def __call__(self, mortal: bool) -> KafkaBroker:
        """One to share, or one that may be killed."""
        if mortal not in self._started:
            broker = self._started[mortal] = KafkaBroker(self._folder / f"broker-{mortal}")
            broker.start()
        return self._started[mortal]

    def stop(self) -> None:
        """End them."""
        for broker in self._started.values():
            broker.stop(kill=True)


def run(case: Case, brokers: Brokers) -> str | None:
    """None when the case holds, else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-") as folder:
        try:
            with work_for(case, Path(folder) / "work", brokers) as work:
                case.scenario(work)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return str(error) or "assertion failed"
    return None


def main() -> int:
    """Run all, or those whose id contains the first argument; print a table; 1 when any failed."""
    class_archive.use()
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-brokers-") as folder:
        brokers = Brokers(Path(folder))
        try:
            return run_all(brokers)
        finally:
            brokers.stop()


def run_all(brokers: Brokers) -> int:
    """1 when any failed."""
    wanted = [case for case in CASES if len(sys.argv) < 2 or sys.argv[1] in case.id]
    results: dict[str, str | None] = {}
    for number, case in enumerate(wanted, 1):
        begin = time.monotonic()
        results[case.id] = run(case, brokers)
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
                if case.point == point and case.sink == sink
            )
            for sink in SINKS
        ]
        table.add_row(f"{point} {title}", *cells)
    Console(width=200).print(table)


if __name__ == "__main__":
    sys.exit(main())
