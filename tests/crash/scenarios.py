"""The fault matrix as data: each case is a point, a sink, a way to fail, and a function that shows the outcome."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.core import faults
from tests.crash.harness import Work, end, wait_until_stopped

SINKS = ("sqlite", "write-ahead")
Scenario = Callable[[Work], None]


@dataclass(frozen=True)
class Case:
    """One cell of the matrix, tried one way."""

    point: int
    title: str
    sink: str
    way: str
    scenario: Scenario
    #: run by `make test` too
    always: bool = False
    #: further points that the same pipeline goes through
    also: tuple[int, ...] = ()

    @property
    def points(self) -> tuple[int, ...]:
        """All points it shows."""
        return (self.point, *self.also)

    @property
    def id(self) -> str:
        """Its name in test output."""
        numbers = "-".join(f"{point:02d}" for point in self.points)
        return f"{numbers}-{self.sink}-{self.way}".replace(" ", "-")


def crash_then_restart(fault: str) -> Scenario:
    """Arm one fault, run into it, run again without it: every row once, nothing left."""

    def scenario(work: Work) -> None:
        code = work.run(fault)
        assert work.fired() == set(faults.parse(fault)), f"{fault} never fired (exit code {code})\n{work.log()}"
        if "kill" in fault and not fault.startswith(("commit.subtask", "commit.mark")):
            # Those two are in a task that delivers for a sink that may lag: the query survives the worker's death.
            assert code != 0, "a killed driver or a killed task cannot end well"
        work.run_clean()
        work.assert_clean()

    return scenario


def crash_in_recovery_twice(way: str) -> Scenario:
    """Die with a decided checkpoint, die in its recovery, die again later in the recovery, then recover."""

    def scenario(work: Work) -> None:
        assert work.run("decision=kill-after@2") != 0
        assert work.run("recovery=kill") != 0
        assert work.run(f"recovery={way}") != 0, work.log()
        work.run_clean()
        work.assert_clean()

    return scenario


def zombie(fault: str) -> Scenario:
    """The first driver pauses, a second one finishes the job, the first wakes up: it may not decide or double."""

    def scenario(work: Work) -> None:
        first = work.start(fault)
        try:
            wait_until_stopped(first)
            run = work.runs
            work.run_clean()
            first.send_signal(signal.SIGCONT)
            code = first.wait(180)
            assert code != 0, "the zombie went on as if nothing had happened"
            assert "FencedError" in work.log(run), work.log(run)
            work.run_clean()
            work.assert_clean()
        finally:
            end(first)

    return scenario


def partitions_change(fault: str) -> Scenario:
    """Crash with two partitions, replay with five, then with one."""

    def scenario(work: Work) -> None:
        assert work.run(fault, partitions=2) != 0
        assert work.run("decision=kill@1", partitions=5) != 0
        work.run_clean(partitions=1)
        work.assert_clean()

    return scenario


def deleted_checkpoint(work: Work) -> None:
    """The checkpoint is gone, the endpoint still knows the name: refused; with the checkpoint back, all is well."""
    checkpoint, kept = work.folder / "checkpoint", work.folder / "kept"
    work.run_clean()
    checkpoint.rename(kept)
    assert work.run() != 0
    assert "ForeignLineageError" in work.log() and "take_over=True" in work.log(), work.log()
    shutil.rmtree(checkpoint)
    kept.rename(checkpoint)
    work.run_clean()
    work.assert_clean()


def old_checkpoint(work: Work) -> None:
    """An old copy of the checkpoint is started: refused; with the right one back, all is well."""
    checkpoint, old, right = (work.folder / name for name in ("checkpoint", "old", "right"))
    assert work.run("batch.return=kill@1") != 0
    shutil.copytree(checkpoint, old)
    work.run_clean()
    checkpoint.rename(right)
    old.rename(checkpoint)
    assert work.run() != 0
    assert "StaleCheckpointError" in work.log() and "take_over=True" in work.log(), work.log()
    shutil.rmtree(checkpoint)
    right.rename(checkpoint)
    work.run_clean()
    work.assert_clean()


def half_a_checkpoint(work: Work) -> None:
    """Spark's part of the checkpoint is gone, the log is not: refused, nothing is taken for delivered."""
    checkpoint = work.folder / "checkpoint"
    work.run_clean()
    parts = [path for path in checkpoint.iterdir() if path.name != "holdfast"]
    aside = work.folder / "aside"
    aside.mkdir()
    for part in parts:
        part.rename(aside / part.name)
    assert work.run() != 0
    assert "StaleCheckpointError" in work.log(), work.log()
    for part in checkpoint.iterdir():
        if part.name != "holdfast":
            shutil.rmtree(part) if part.is_dir() else part.unlink()
    for part in aside.iterdir():
        part.rename(checkpoint / part.name)
    work.run_clean()
    work.assert_clean()


def damaged(damage: Callable[[bytes], bytes], pick: Callable[[Work], Path]) -> Scenario:
    """A record is damaged after a crash: refused with its path; with the record back, all is well."""

    def scenario(work: Work) -> None:
        assert work.run("decision=kill-after@2") != 0
        path = pick(work)
        right = path.read_bytes()
        path.write_bytes(damage(right))
        assert work.run() != 0
        assert "RecordError" in work.log() and path.name in work.log(), work.log()
        path.write_bytes(right)
        work.run_clean()
        work.assert_clean()

    return scenario


def _flip(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def _last_decision(work: Work) -> Path:
    return work.decisions()[-1]


def _first_commit(work: Work) -> Path:
    return sorted((work.log_folder / "commits").iterdir())[0]


def _wal_file(work: Work) -> Path:
    return sorted((work.log_folder / "wal").rglob("*.arrow"))[-1]


def _cases() -> list[Case]:
    cases: list[Case] = []
    for sink in SINKS:
        second = "commit.sink" if sink == "sqlite" else "commit.subtask"
        last = "commit.sink" if sink == "sqlite" else "commit.mark"
        for point, title, error, kill, lost in (
            (1, "in the middle of a task", "task.write=error@2", "task.write=kill@2", "task.write=lost@2"),
            (2, "all tasks prepared, no decision", "decision=error@2", "decision=kill@2", "task.prepared=lost@2"),
            (
                3,
                "decision durable, nothing committed",
                "commit.sink=error@2",
                "decision=kill-after@2",
                "decision=lost@2",
            ),
            (4, "k of n committed", f"{second}=error@2", f"{second}=kill@2", f"{second}=lost@1"),
            (5, "committed, answer lost", "commit.record=error@2", f"{last}=kill-after@2", f"{last}=lost@2"),
            (6, "sinks committed, not Spark", "batch.return=error@2", "batch.return=kill@2", "batch.return=lost@2"),
        ):
            ways = {"error": error, "kill": kill, "lost": lost}
            cases += [Case(point, title, sink, way, crash_then_restart(fault)) for way, fault in ways.items()]
        title = "crash inside recovery, twice"
        cases += [Case(8, title, sink, way, crash_in_recovery_twice(way)) for way in ("error", "kill", "lost")]
        title = "driver stopped, second driver started, first continued"
        cases += [
            Case(9, title, sink, "before decision", zombie("decision=stop@2")),
            Case(9, title, sink, "before commit", zombie("commit.sink=stop@2")),
            Case(9, title, sink, "after commit", zombie("commit.record=stop-after@2")),
        ]
        title = "partition count changes before replay"
        cases += [
            Case(11, title, sink, "undecided", partitions_change("decision=kill@2")),
            Case(11, title, sink, "decided", partitions_change("decision=kill-after@2")),
            Case(11, title, sink, "task killed", partitions_change("task.prepared=kill@2")),
        ]
        title = "old or deleted checkpoint"
        cases += [
            Case(12, title, sink, "deleted", deleted_checkpoint),
            Case(12, title, sink, "old copy", old_checkpoint),
            Case(12, title, sink, "half deleted", half_a_checkpoint),
        ]
        title = "record truncated or a bit flipped"
        cases += [
            Case(13, title, sink, "truncated", damaged(lambda data: data[:-40], _last_decision)),
            Case(13, title, sink, "bit flipped", damaged(_flip, _first_commit)),
            Case(13, title, sink, "log file", damaged(_flip, _wal_file)),
        ]
    # Each point once: for one sink or for the other. The columns of Kafka and of the stores try each again.
    once = {1: "kill", 3: "kill", 5: "lost", 8: "kill", 9: "before decision", 12: "old copy"}
    other = {2: "lost", 4: "error", 6: "error", 11: "decided", 12: "deleted", 13: "log file"}
    chosen = {("sqlite", p, w) for p, w in once.items()} | {("write-ahead", p, w) for p, w in other.items()}
    return [Case(c.point, c.title, c.sink, c.way, c.scenario, (c.sink, c.point, c.way) in chosen) for c in cases]


CASES = _cases()
