"""The fault matrix as data: each case is a point, a sink, a way to fail, and a function that shows the outcome."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.core import faults
from tests.crash.harness import FAILED, KILLED, Work
from tests.crash.processes import end

SINKS = ("sqlite", "write-ahead")
#: Faults between a send and the committer's mark: the rows are sent again, and that is what the guarantee says (W9).
SENT_AGAIN = ("commit.subtask=lost@1", "commit.mark=error@2", "commit.mark=kill@2")
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


def crash_then_restart(fault: str, *, resent: int = 0) -> Scenario:
    """Arm one fault, run into it, run again without: every row once, nothing left.

    A commit that fails is tried again within the run, so there the query must survive the fault.
    """

    def scenario(work: Work) -> None:
        code = work.run(fault)
        ((point, (mode, _)),) = faults.parse(fault).items()
        assert code in expected_end(point, mode, work.killed), f"{fault}: exit code {code}\n{work.log()}"
        assert code != FAILED or reason(point, mode, work) in work.log(), work.log()
        if code == 0:
            work.assert_clean(resent=resent)
        work.run_clean()
        work.assert_clean(resent=resent)

    return scenario


def expected_end(point: str, mode: str, killed: int) -> tuple[int, ...]:
    """The exit codes that a fault may lead to; `killed` is that of a driver whose own point is a kill, see Work."""
    kind, _, place = point.partition(":")[0].partition(".")
    if mode in ("error", "lost"):
        return (0,) if kind in ("commit", "offsets") else (FAILED,)
    if kind == "task":
        return (FAILED,)  # the worker dies, and local Spark gives a task one attempt
    if place in ("subtask", "mark") and killed == KILLED:
        return 0, KILLED  # a worker or the driver, as the sink has it; a delivery outlives its worker
    return (killed,)


def reason(point: str, mode: str, work: Work) -> str:
    """What a driver says that failed for this fault and no other."""
    if mode in ("error", "lost"):
        return "InjectedFault"
    return "" if point.startswith("task.") else work.last_words


def between_two_commits(*sinks: str) -> Scenario:
    """The driver dies when one sink has committed a checkpoint and another has not, either way round; both do."""

    def scenario(work: Work) -> None:
        for number, (done, late) in enumerate([sinks, sinks[::-1]]):
            fault = f"commit.sink:{late}=hang@{2 - number}"
            work.kill_when(fault, lambda done=done, at=1 + number: done in work.committed_by(at))  # type: ignore[misc]
            assert late not in work.committed_by(1 + number), work.log()
        work.run_clean()
        work.assert_clean()

    return scenario


def crash_in_recovery_twice(way: str, deep: str = "commit.record") -> Scenario:
    """Die with a decided checkpoint, die as its recovery begins, die again within the recovery, then recover.

    The second time something was done: with `kill` the endpoint has committed and only the record is missing; or, at a
    sink that may lag and nobody waits for, the recovery was through but for its end.
    """
    second = {"error": "recovery=error", "kill": f"{deep}=kill", "lost": "recovery=lost"}[way]
    if deep == "recovery":
        second = second.replace("=kill", "=kill-after")

    def scenario(work: Work) -> None:
        work.crash("decision=kill-after@2")
        decided = len(work.decisions())
        assert work.run("recovery=kill") == work.killed, work.log()
        assert work.generations() == 2 and not work.committed_by(1), "recovery had done something already"
        work.crash(second)
        # It was this run's recovery that died: it had its generation, and no batch was begun.
        assert work.generations() == 3, work.log()
        assert work.fired() == {"recovery"} or "recovery" in work.inside(deep), f"not in recovery\n{work.log()}"
        assert len(work.decisions()) - decided == 2, "the two that died are fenced, and nothing was decided since"
        work.run_clean()
        work.assert_clean()

    return scenario


def zombie(fault: str) -> Scenario:
    """The first driver pauses, a second one finishes the job, the first wakes up: it may not decide or double."""

    def scenario(work: Work) -> None:
        first = work.start(fault)
        try:
            paused = work.wait_paused(first)
            run = work.runs
            work.run_clean()
            # One that is not the driver may have woken up by itself, met the fence and ended: see DoorWork.
            with suppress(ProcessLookupError):
                os.kill(paused, signal.SIGCONT)
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
        work.crash(fault, partitions=2)
        work.crash("decision=kill@1", partitions=5)
        work.run_clean(partitions=1)
        work.assert_clean()

    return scenario


def deleted_checkpoint(work: Work) -> None:
    """The checkpoint is gone, the endpoint still knows the name: refused; with the checkpoint back, all is well."""
    checkpoint, kept = work.folder / "checkpoint", work.folder / "kept"
    work.run_clean()
    checkpoint.rename(kept)
    work.crash()
    assert "ForeignLineageError" in work.log() and "take_over=True" in work.log(), work.log()
    shutil.rmtree(checkpoint)
    kept.rename(checkpoint)
    work.run_clean()
    work.assert_clean()


def old_checkpoint(work: Work) -> None:
    """An old copy of the checkpoint is started: refused; with the right one back, all is well."""
    checkpoint, old, right = (work.folder / name for name in ("checkpoint", "old", "right"))
    work.crash("batch.return=kill@1")
    shutil.copytree(checkpoint, old)
    work.run_clean()
    checkpoint.rename(right)
    old.rename(checkpoint)
    work.crash()
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
    work.crash()
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
        work.crash("decision=kill-after@2")
        path = pick(work)
        right = path.read_bytes()
        path.write_bytes(damage(right))
        work.crash()
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
    return sorted((work.log_folder / "commits").glob("*.json"))[0]


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
            cases += [
                Case(point, title, sink, way, crash_then_restart(fault, resent=int(fault in SENT_AGAIN)))
                for way, fault in ways.items()
            ]
        title = "crash inside recovery, twice"
        deep = "commit.record" if sink == "sqlite" else "recovery"
        cases += [Case(8, title, sink, way, crash_in_recovery_twice(way, deep)) for way in ("error", "kill", "lost")]
        if sink == "sqlite":
            both = between_two_commits("sqlite-orders", "sqlite-copy")
            cases.append(Case(4, "k of n committed", sink, "one of two", both))
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
