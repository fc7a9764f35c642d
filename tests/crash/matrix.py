"""`make matrix`: run every case of the fault matrix on real processes and print the table; `make cluster`, `make s3`,
`make clouds` and `make doors` are suites of their own.

All cases take hours. With `--results FILE` each case adds a line of JSON to the file when it ends (its outcome, the
seconds it took, the commit it ran on), and a case that the file says has passed is not run again: a run that was cut
off goes on where it was. What a failed case left is kept beside the file. The files in `tests/crash/results` are the
runs that docs/deploy/overview.md and docs/spark-doors.md tell of.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.crash import cluster_scenarios, warm
from tests.crash.cases import SERVER_KILLED, SUITES, work_for
from tests.crash.harness import ROOT
from tests.crash.scenarios import Case
from tests.servers.cassandra import CassandraServer
from tests.servers.clouds import Azurite, FakeGcs
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_cluster import KafkaCluster
from tests.servers.postgres import PostgresServer
from tests.servers.s3_stores import Moto, Versity
from tests.servers.spark_cluster import SparkCluster

#: Results of long runs that are kept with the code: <suite>.jsonl
KEPT = Path(__file__).parent / "results"


class Servers:
    """The servers of one run of the matrix, each started when the first case needs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: dict[tuple[str, bool], Any] = {}
        self._made = 0

    def __call__(self, name: str, mortal: bool) -> Any:
        """One to share, or one that may be killed."""
        if (name, mortal) not in self._started:
            self._made += 1
            server = self._started[name, mortal] = self._make(name, self._folder / f"{name}-{self._made}")
            server.start()
        return self._started[name, mortal]

    def _make(self, name: str, folder: Path) -> Any:
        if name == "postgres":
            return PostgresServer(fsync="off")  # no case cuts the power
        made: dict[str, Any] = {
            "kafka": KafkaBroker,
            "kafka_cluster": KafkaCluster,
            "cassandra": CassandraServer,
            "spark_cluster": SparkCluster,
            "moto": Moto,
            "versity": Versity,
            "azurite": Azurite,
            "fake-gcs": FakeGcs,
        }
        return made[name](folder)

    def stop_mortal(self) -> None:
        """After a case that killed one and failed: nobody knows how it is, so the next case gets a new one."""
        for name, mortal in [key for key in self._started if key[1] or key[0].endswith("_cluster")]:
            self._stop(name, self._started.pop((name, mortal)))

    def stop(self) -> None:
        """End them."""
        while self._started:
            (name, _), server = self._started.popitem()
            self._stop(name, server)

    def _stop(self, name: str, server: Any) -> None:
        if name == "postgres":
            server.close()
        elif name == "kafka_cluster":
            server.stop()
        else:
            server.stop(kill=True)


class Results:
    """What became of each case, in a file or only in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        #: id -> its last line
        self.last: dict[str, dict[str, Any]] = {line["id"]: line for line in map(json.loads, lines)}

    def passed(self, case: Case) -> bool:
        """Whether the last try was good."""
        return case.id in self.last and self.last[case.id]["ok"]

    def add(self, case: Case, error: str | None, seconds: float, commit: str) -> None:
        """One line more."""
        line = {
            "id": case.id,
            "ok": error is None,
            "seconds": round(seconds, 1),
            "commit": commit,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            **({"error": error} if error else {}),
        }
        self.last[case.id] = line
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def folder_for(self, case: Case) -> Path | None:
        """Where what is left of a failed case is kept."""
        return self.path.with_name(f"{self.path.name}.failed") / case.id if self.path else None


def run(case: Case, servers: Servers, keep: Path | None = None) -> str | None:
    """None when the case holds, else what went wrong; `keep` is then a copy of its folder."""
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-") as folder:
        work_folder = Path(folder) / "work"
        try:
            with work_for(case, work_folder, servers) as work:
                case.scenario(work)
        except Exception as error:  # noqa: BLE001  whatever it is, the case has failed, and the others want their turn
            known = isinstance(error, AssertionError | subprocess.TimeoutExpired)
            if case.point in (*SERVER_KILLED, cluster_scenarios.POINT) or case.sink == "kafka-three":
                servers.stop_mortal()
            if keep:
                shutil.rmtree(keep, ignore_errors=True)
                shutil.copytree(work_folder, keep)
            return (known and str(error)) or traceback.format_exc()
    return None


def choose(cases: Sequence[Case], part: str, sinks: Sequence[str]) -> list[Case]:
    """Those whose id contains `part`; with `sinks` only theirs, in this order of the sinks."""
    found = [case for case in cases if part in case.id]
    return [case for sink in sinks for case in found if case.sink == sink] if sinks else found


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser("python -m tests.crash.matrix", description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="only cases whose id contains this")
    parser.add_argument("--sinks", default="", help="only these, in this order, with commas")
    parser.add_argument("--results", type=Path, metavar="FILE", help="note outcomes here; skip what has passed")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after so long")
    parser.add_argument("--cold", action="store_true", help="start Spark anew for each run; see tests/crash/warm.py")
    parser.add_argument("--suite", choices=list(SUITES), default="matrix", help="which cases; the matrix by default")
    parser.add_argument("--list", action="store_true", help="print the ids and what FILE says of them; run nothing")
    options = parser.parse_args(given)
    options.sinks = [sink for sink in options.sinks.split(",") if sink]
    known = SUITES[options.suite][1]
    if unknown := set(options.sinks) - set(known):
        parser.error(f"no such sinks: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


def main() -> int:
    """Run all, or those that were asked for; print a table; 1 when any failed."""
    options = arguments(sys.argv[1:])
    cases = choose(SUITES[options.suite][0], options.part, options.sinks)
    results = Results(options.results)
    if options.list:
        for case in cases:
            print(case.id, "passed" if results.passed(case) else "failed" if case.id in results.last else "-")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers and drivers end with it
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-servers-") as folder:
        servers = Servers(Path(folder))
        if not options.cold:
            warm.POOL = warm.Pool(Path(folder))
        try:
            run_all([case for case in cases if not results.passed(case)], servers, results, options.minutes * 60)
        finally:
            if warm.POOL is not None:
                warm.POOL.close()
            servers.stop()
    print_table(cases, results)
    failed = [case.id for case in cases if case.id in results.last and not results.passed(case)]
    open_ = [case.id for case in cases if case.id not in results.last]
    print(f"{len(cases) - len(failed) - len(open_)} passed, {len(failed)} failed, {len(open_)} not run")
    return 1 if failed or open_ else 0


def run_all(wanted: list[Case], servers: Servers, results: Results, seconds: float) -> None:
    """One after the other."""
    until = time.monotonic() + seconds
    for number, case in enumerate(wanted, 1):
        begin = time.monotonic()
        if begin > until:
            return
        commit = commit_of_source()
        error = run(case, servers, results.folder_for(case))
        took = time.monotonic() - begin
        results.add(case, error, took, commit)
        print(f"[{number}/{len(wanted)}] {case.id}: {'FAILED' if error else 'ok'} ({took:.0f} s)", flush=True)
        if error:
            print(error, flush=True)


def commit_of_source() -> str:
    """What the case is run on; "+" when there are changes that no commit has, other than results."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{KEPT.relative_to(ROOT)}")
    commit = git("describe", "--always", "--abbrev=10", "--exclude=*")
    return f"{commit}{'+' if changed else ''}" if commit else "unknown"


def print_table(cases: list[Case], results: Results) -> None:
    """One row a point, one column a sink, each way with its outcome."""
    sinks = list(dict.fromkeys(case.sink for case in cases))
    table = Table("point", *sinks, show_lines=True)
    for point, title in sorted({(case.point, case.title) for case in cases}):
        cells = [
            ", ".join(
                f"{case.way} {'✓' if results.passed(case) else '✗' if case.id in results.last else '-'}"
                for case in cases
                if point in case.points and case.sink == sink
            )
            for sink in sinks
        ]
        table.add_row(f"{point} {title}", *cells)
    Console(width=200).print(table)


if __name__ == "__main__":
    sys.exit(main())
