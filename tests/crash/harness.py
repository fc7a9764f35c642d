"""Runs drivers as real processes in a work folder, breaks them, and audits what they left."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.core import faults
from holdfast.testing.audit import AuditReport, audit
from tests.crash import warm
from tests.crash.processes import Driver, end, wait_for, wait_until_stopped
from tests.servers import spark_cluster
from tests.servers.spark_cluster import SparkCluster

ROOT = Path(__file__).parents[2]
FILES, ROWS = 3, 200
WORDS = ("oak", "elm", "ash", "fir")
#: kind of sink -> where its rows are: the endpoint of a write-ahead sink, tables of SQLite
TABLES = {"sqlite": ("orders", "copy"), "write-ahead": ("endpoint",), "beside": ("endpoint", "orders")}
#: exit codes of a driver: it raised, and it was killed
FAILED, KILLED = 1, -9
#: id, word, and the time in seconds since the epoch
Row = tuple[int, str, float]


def input_row(number: int) -> Row:
    """The row of an id, with all its columns."""
    return number, WORDS[number % 4], datetime.fromisoformat(_at(number)).timestamp()


def _at(number: int) -> str:
    return f"2024-01-01T00:{number // ROWS:02d}:{number % 60:02d}+00:00"


class Work:
    """One test's folder: input, checkpoint, endpoints, and the processes that ran there."""

    #: how many checkpoints the input makes
    checkpoints = FILES
    #: the program that is run
    module = "tests.crash.job"
    #: the programs whose processes may serve several runs, see tests.crash.warm
    SERVING = ("tests.crash.job", "tests.crash.door_job")
    #: each run has a process to itself
    cold = False
    #: what Spark is told in every run of every case of this kind
    shared_conf: Mapping[str, str] = {}
    #: how a driver ends when the process that decides and commits is killed: it is that process
    killed = KILLED
    #: and what it says then
    last_words = ""
    #: where the drivers' tasks run; None: in the driver's own process
    spark_cluster: SparkCluster | None = None

    def __init__(self, folder: Path, sink: str) -> None:
        self.folder, self.sink = folder, sink
        self.runs = 0
        #: run -> the fault that it was to run into
        self._armed: dict[int, str] = {}
        #: run -> where its process may be another's, too
        self._warm: dict[int, warm.WarmRun] = {}
        folder.mkdir(parents=True)
        self.make_input()

    def make_input(self) -> None:
        """The rows, one file a checkpoint."""
        (self.folder / "in").mkdir()
        for number in range(self.checkpoints):
            self.add_input(number)

    def add_input(self, number: int) -> None:
        """One more input file of ROWS rows; ids are unique over all files."""
        lines = []
        for i in range(number * ROWS, (number + 1) * ROWS):
            lines.append(json.dumps({"id": i, "word": WORDS[i % 4], "at": _at(i)}))
        path = self.folder / "in" / f"{number}.json"
        path.with_suffix(".tmp").write_text("\n".join(lines) + "\n")
        path.with_suffix(".tmp").rename(path)
        # Spark takes files in the order of their modification times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def start(self, fault: str = "", **spec: Any) -> Driver:
        """Start a driver in a session of its own, so that its JVM and workers can be ended with it."""
        self.runs += 1
        self.once.mkdir()
        spec = {"work": str(self.folder), "sink": self.sink, **spec}
        env = {**os.environ, "PYTHONPATH": f"{_source()}:{ROOT}", faults.ONCE: str(self.once)}
        env.pop(faults.VARIABLE, None)
        if fault:
            env[faults.VARIABLE] = self._armed[self.runs] = fault
        if self.spark_cluster is not None:
            told = spark_cluster.conf(env, ("PYTHONPATH", faults.VARIABLE, faults.ONCE), self.folder)
            spec |= {"master": self.spark_cluster.url, "conf": {**told, **spec.get("conf", {})}}
        command, path = [sys.executable, "-m", self.module], self.folder / f"run-{self.runs}.log"
        # A task that sleeps outlives its driver, and is told where to leave word as a fault is.
        alike = self.module in self.SERVING and not {"master", "sleepy", "late", "remote"} & set(spec)
        alike = alike and spec.get("conf", {}) == self.shared_conf
        if warm.POOL is not None and alike and not self.cold:
            before = {run.pid for run in self._warm.values()}
            run = warm.POOL.start([*command, "--warm"], env, ROOT, path, spec, before)
            self._warm[self.runs] = run
            return run
        with path.open("wb") as log:
            return subprocess.Popen(
                [*command, json.dumps(spec)], cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, fault: str = "", *, timeout: float = 240, may_miss: bool = False, **spec: Any) -> int:
        """Run a driver to its end, whichever it is; nothing of it stays alive. Returns its exit code.

        The fault must have fired, unless it `may_miss`: then the caller looks.
        """
        process = self.start(fault, **spec)
        try:
            code = process.wait(timeout)
        finally:
            end(process)
        if may_miss:
            self.missed()
        self.assert_fired()
        return code

    def run_clean(self, fault: str = "", **spec: Any) -> None:
        """A run that must succeed, also when it meets a fault."""
        code = self.run(fault, **spec)
        assert code == 0, f"exit code {code}\n{self.log()}"

    def crash(self, fault: str = "", **spec: Any) -> None:
        """A run that must meet its fault and fail; without a fault it must fail all the same."""
        code = self.run(fault, **spec)
        assert code != 0, f"{fault or 'this run'} did not fail\n{self.log()}"

    def kill_when(self, fault: str, condition: Callable[[], Any], **spec: Any) -> None:
        """Start a driver that hangs in this fault, and kill it as soon as the condition holds."""
        driver = self.start(fault, **spec)
        try:
            wait_for(lambda: (self.fired() and condition()) or driver.poll() is not None, f"{fault} and the rest")
            assert driver.poll() is None, f"the driver ended by itself\n{self.log()}"
        finally:
            end(driver)

    def wait_paused(self, driver: Driver) -> int:
        """Wait until the process that decides and commits has paused itself at a fault; its id."""
        wait_until_stopped(driver)
        return driver.pid

    def missed(self) -> None:
        """The last run was too slow or too fast for its fault: it is tried another way."""
        if not self.fired():
            self._armed.pop(self.runs, None)

    @property
    def once(self) -> Path:
        """Where the last run notes the faults that fired."""
        return self.folder / f"once-{self.runs}"

    def fired(self, run: int | None = None) -> set[str]:
        """The fault points that a run came to, the last one by default."""
        return {path.name for path in (self.folder / f"once-{run or self.runs}").iterdir()} - {"begin"}

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What happened on the cluster so far, of one kind (`SparkListener...`), over all runs."""
        files = (self.folder / "events").iterdir()
        lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
        # The last line of a driver that runs or was killed may be a part of one.
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in found if event["Event"] == f"SparkListener{kind}"]

    def inside(self, fault: str) -> set[str]:
        """The other points that the driver was inside of when this fault fired in the last run."""
        return set((self.once / fault).read_text().split())

    def assert_fired(self) -> None:
        """Every fault of every run so far did fire: a case that meets no fault shows nothing."""
        for run, fault in self._armed.items():
            missing = set(faults.parse(fault)) - self.fired(run)
            assert not missing, f"run {run}: {', '.join(missing)} of {fault} never fired\n{self.log(run)}"

    def log(self, run: int | None = None) -> str:
        """The tail of a run's output."""
        return self.printed(run)[-6000:]

    def printed(self, run: int | None = None) -> str:
        """All that a run printed, the last one by default."""
        known = self._warm.get(run or self.runs)
        if known is not None and known.returncode is None:
            known.copy_log()
        return (self.folder / f"run-{run or self.runs}.log").read_text(errors="replace")

    def seen(self) -> dict[str, Any]:
        """What a process of tests.crash.failing_job saw."""
        path = self.folder / "seen.json"
        assert path.exists(), self.log()
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    # -- what is at the endpoints -----------------------------------------------------------------------------------

    def sent(self) -> list[int]:
        """The ids that went in."""
        return list(range(len(list((self.folder / "in").iterdir())) * ROWS))

    def received(self, table: str = "orders") -> list[Row]:
        """The rows at the endpoint with all their columns, as a plain reader sees them."""
        if table == "endpoint":
            files = (self.folder / "endpoint").glob("*.txt")
            rows: Iterable[Any] = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        else:
            rows = self.query(f"SELECT id, word, at FROM {table}")
        return [(number, word, datetime.fromisoformat(at).timestamp()) for number, word, at in rows]

    def sends(self) -> dict[tuple[int, int], int]:
        """How often the write-ahead endpoint was sent each (checkpoint, subtask)."""
        journal = self.folder / "endpoint" / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        counts = Counter(tuple(map(int, line.split())) for line in lines)
        return {(checkpoint, subtask): times for (checkpoint, subtask), times in counts.items()}

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Rows of the SQLite endpoint."""
        connection = sqlite3.connect(self.folder / "out.db")
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def audits(self) -> list[AuditReport]:
        """One report for each endpoint."""
        return [audit(map(input_row, self.sent()), self.received(table)) for table in TABLES[self.sink]]

    def rows_sent(self) -> list[Any]:
        """The rows that went in, as `held` gives them."""
        return [input_row(number) for number in self.sent()]

    def held(self) -> list[Counter[Any]]:
        """What each endpoint holds now."""
        return [Counter(self.received(table)) for table in TABLES[self.sink]]

    def copy_endpoint(self) -> Callable[[], None]:
        """Make a copy of the endpoint, with what a committer keeps beside it; returns what brings it back."""
        copy = self.folder / "copy"
        copy.mkdir()
        database = self.folder / "out.db"
        if database.exists():
            with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy / "out.db")) as target:
                source.backup(target)
        folders = [path for path in self.folder.glob("endpoint*") if path.is_dir()]
        for folder in folders:
            shutil.copytree(folder, copy / folder.name)

        def bring_back() -> None:
            for path in (database, *self.folder.glob("out.db-*")):
                path.unlink(missing_ok=True)
            for folder in folders:
                shutil.rmtree(folder)
            for path in copy.iterdir():
                path.rename(self.folder / path.name)

        return bring_back

    def assert_clean(self, *, resent: int = 0) -> None:
        """Every row once with all its columns, nothing pending, nothing left behind, nothing sent twice.

        `resent`: so many subtasks were sent twice to a write-ahead endpoint, because the case is about that (W9).
        """
        self.assert_fired()
        for report in self.audits():
            assert report.ok, f"{report}\n{self.log()}"
        self.assert_log_clean()
        twice = {place: times for place, times in self.sends().items() if times > 1}
        assert len(twice) == resent and set(twice.values()) <= {2}, f"sent more than once: {twice}\n{self.log()}"

    def assert_log_clean(self) -> None:
        """Each checkpoint decided once and committed; no log file that nobody needs."""
        left = sorted(str(path) for path in (self.log_folder / "wal").rglob("*.arrow"))
        assert not left, f"write-ahead files nobody needs: {left}"
        # A process that is still there may be writing one (the heartbeat beside a driver): it gets its name.
        recent = [path for path in self.log_folder.rglob(".tmp-*") if age(path) < 1]
        wait_for(lambda: not any(path.exists() for path in recent), f"the names of {recent}", 5)
        decided = [record["checkpoint_id"] for record in self.records("decision")]
        assert sorted(decided) == list(range(self.checkpoints)), f"each checkpoint is decided once, not {decided}"
        # What a killed writer leaves has no name of ours yet, and is removed when it is an hour old.
        names = [p.name for p in (self.log_folder / "commits").iterdir() if not p.name.startswith(".tmp-")]
        committed = {int(name.split(".")[0]) for name in names}
        assert committed == set(range(self.checkpoints)), committed

    def generations(self) -> int:
        """How many drivers have claimed this location."""
        return len([path for path in (self.log_folder / "generations").iterdir() if path.name.isdigit()])

    def committed_by(self, checkpoint_id: int) -> set[str]:
        """The sinks that have a commit record of a checkpoint."""
        files = (self.log_folder / "commits").glob(f"{checkpoint_id}.*.json")
        return {str(json.loads(path.read_text())["record"]["sink"]) for path in files}

    def sinks_of(self, checkpoint_id: int) -> set[str]:
        """The sinks a checkpoint was decided for; none as long as it is not."""
        found = [record for record in self.records("decision") if record["checkpoint_id"] == checkpoint_id]
        return set(found[0]["sinks"]) if found else set()

    def is_complete(self, checkpoint_id: int) -> bool:
        """Whether every sink has committed it."""
        return self.committed_by(checkpoint_id) == self.sinks_of(checkpoint_id) != set()

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind, in the order of their slots."""
        found = [json.loads(path.read_text())["record"] for path in self.decisions()]
        return [record for record in found if record["kind"] == kind]

    @property
    def log_folder(self) -> Path:
        """holdfast's own files."""
        return self.folder / "checkpoint" / "holdfast"

    def decisions(self) -> list[Path]:
        """The decision slots, in order."""
        return sorted((self.log_folder / "decisions").glob("*.json"))


def age(path: Path) -> float:
    """Seconds since a file was written; one that is gone meanwhile is as old as can be."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the command line."""
    env = {**os.environ, "PYTHONPATH": _source(), "COLUMNS": "200"}
    command = [sys.executable, "-m", "holdfast.cli", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def status(work: Work) -> subprocess.CompletedProcess[str]:
    """`holdfast status` of the pipeline."""
    return holdfast("status", str(work.folder / "checkpoint"))


def _source() -> str:
    """Where holdfast is imported from; a mutant's copy when one is being tested."""
    return os.environ.get("HOLDFAST_SOURCE", str(ROOT / "src"))
