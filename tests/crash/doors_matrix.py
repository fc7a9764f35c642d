"""`make doors`: the points of the fault matrix through `format("holdfast")`, on real drivers, one line a case.

`python -m tests.crash.doors_matrix [WORDS]` runs those whose name holds it. `make test` runs the points against the
process alone (tests/unit/test_door_process.py) and a few pipelines whole (tests/crash/test_doors.py).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.crash.door_work import DoorWork, FilesDoor, KafkaDoor
from tests.crash.kafka_work import MODES
from tests.crash.matrix import Servers
from tests.crash.scenarios import SENT_AGAIN, deleted_checkpoint, half_a_checkpoint, old_checkpoint, partitions_change
from tests.crash.stores_work import STORES

#: Also those that the matrix of hf.write_stream has at points 1 to 6.
FAULTS = (
    "task.write=error@2", "task.write=kill@2", "task.prepared=lost@2", "task.prepared=kill@2", "decision=error@2",
    "decision=kill@2", "decision=lost@2", "decision=kill-after@2", "commit.sink=error@2", "commit.sink=kill@2",
    "commit.sink=kill-after@2", "commit.sink=lost@2", "commit.record=error@2", "commit.record=kill@2",
    "batch.return=error@2", "batch.return=kill@2", "batch.return=lost@2", "recovery=error", "recovery=kill",
)  # fmt: skip
OF_LOGS = ("commit.subtask=error@2", "commit.subtask=kill@2", "commit.mark=lost@2", "commit.mark=kill@2")


def through(fault: str) -> Callable[[DoorWork], None]:
    """Run into the fault, then run again without: every row once, nothing left."""

    def scenario(work: DoorWork) -> None:
        code = work.run(fault)
        assert code == 0 or work.fired(), work.log()
        work.run_clean()
        work.assert_clean(resent=int(fault in SENT_AGAIN))

    return scenario


def cases() -> dict[str, Callable[[DoorWork], None]]:
    """Name -> what is done; the name begins with the sink."""
    found = {f"sqlite {fault}": through(fault) for fault in FAULTS}
    found |= {f"write-ahead {fault}": through(fault) for fault in (*FAULTS, *OF_LOGS)}
    found |= {f"{sink} {fault}": through(fault) for sink in ("kafka", "files") for fault in FAULTS}
    for sink in ("sqlite", "write-ahead", "kafka", "files"):
        found |= {
            f"{sink} partitions change, decided": partitions_change("decision=kill-after@2"),
            f"{sink} partitions change, undecided": partitions_change("decision=kill@2"),
            f"{sink} checkpoint deleted": deleted_checkpoint,
            f"{sink} checkpoint old": old_checkpoint,
            f"{sink} checkpoint half": half_a_checkpoint,
        }  # type: ignore[dict-item]
    return found


@contextmanager
def work_for(sink: str, folder: Path, servers: Servers) -> Iterator[DoorWork]:
    """A folder for a case."""
    if sink in MODES:
        with closing(KafkaDoor(folder, sink, servers("kafka", False))) as kafka:
            yield kafka
    elif sink in STORES:
        with closing(FilesDoor(folder, sink, lambda name: servers(name, False))) as files:
            yield files
    else:
        yield DoorWork(folder, sink)


def main() -> int:
    """Run those that were asked for, with the servers that they need."""
    with tempfile.TemporaryDirectory(prefix="holdfast-doors-") as folder:
        servers = Servers(Path(folder))
        try:
            return run(sys.argv[1] if len(sys.argv) > 1 else "", servers)
        finally:
            servers.stop()


def run(wanted: str, servers: Servers) -> int:
    """Run them, and say which failed."""
    failed = 0
    for name, scenario in cases().items():
        if wanted not in name:
            continue
        began = time.monotonic()
        # The process beside a driver that has ended is about to end, and may still write its last words there.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                with work_for(name.partition(" ")[0], Path(folder) / "work", servers) as work:
                    scenario(work)
                told = "ok"
            except AssertionError as error:
                failed, told = failed + 1, f"FAILED: {error}"
        print(f"{name:50} {time.monotonic() - began:5.0f} s  {told}", flush=True)
    print(f"{failed} failed" if failed else "every row once, each time")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
