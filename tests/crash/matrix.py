"""`make matrix`: run every case of the fault matrix on real processes and print the table."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests import class_archive
from tests.crash.harness import Work
from tests.crash.scenarios import CASES, SINKS, Case


def run(case: Case) -> str | None:
    """None when the case holds, else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-") as folder:
        try:
            case.scenario(Work(Path(folder) / "work", case.sink))
        except AssertionError as error:
            return str(error) or "assertion failed"
    return None


def main() -> int:
    """Run all, or those whose id contains the first argument; print a table; 1 when any failed."""
    class_archive.use()
    wanted = [case for case in CASES if len(sys.argv) < 2 or sys.argv[1] in case.id]
    results: dict[str, str | None] = {}
    for number, case in enumerate(wanted, 1):
        begin = time.monotonic()
        results[case.id] = run(case)
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
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
