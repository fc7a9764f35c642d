"""An engine without Spark: batches are lists of partitions, tasks run in a loop, endpoints keep what they were told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.log import RETAIN, CheckpointLog
from holdfast.checkpoint.loops import Inline
from holdfast.checkpoint.ports import EnginePosition, LoopTasks, Run, SubtaskReport
from holdfast.checkpoint.storage import LocalStorage, Storage, open_storage
from holdfast.committers.base import CheckpointCommitter
from holdfast.core.model import Committable, Outcome
from holdfast.core.naming import Task
from holdfast.core.repair import Replayed
from holdfast.core.retry import Retry
from holdfast.errors import LostError
from holdfast.sinks.selection import WHOLE, Selections
from holdfast.sinks.subtask import digest_partition, make_task, write_subtask
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.sinks.write_ahead import WriteAheadSink

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
Rows = Sequence[Sequence[int]]
_attempts = itertools.count(100)


def record_batch(ids: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array([f"n{i}" for i in ids])], schema=SCHEMA)


def batches(ids: Sequence[int]) -> list[pa.RecordBatch]:
    """Two record batches a partition, so that every sink sees more than one."""
    half = (len(ids) + 1) // 2
    return [record_batch(part) for part in (ids[:half], ids[half:])]


class InProcessBatch:
    """A micro-batch whose partitions are lists of ids, or of record batches."""

    def __init__(
        self,
        *partitions: Sequence[Any],
        on_task: Callable[[int], None] | None = None,
        selections: Selections | None = None,
        letters: Letters | None = None,
    ) -> None:
        self.partitions = partitions
        self.selections, self.letters = selections or {}, letters
        self.on_task = on_task
        self.writes = 0
        self.drained = 0

    def write(
        self,
        run: Run,
        sinks: Sequence[Any],
        checkpoint_id: int,
        timestamp: int,
        *,
        only: Collection[int] | None = None,
        repair: int = 0,
        careful: bool = False,
    ) -> list[SubtaskReport]:
        self.writes += 1
        reports = []
        for subtask, rows in enumerate(self.partitions):
            if only is not None and subtask not in only:
                continue
            if self.on_task:
                self.on_task(subtask)
            attempt = next(_attempts)
            tasks = [make_task(run, sink.name, checkpoint_id, subtask, attempt, timestamp, repair) for sink in sinks]
            ready = self._ready(rows)
            reports.append(write_subtask(sinks, tasks, ready, self.selections, self.letters, careful=careful))
        return reports

    def _ready(self, rows: Sequence[Any]) -> list[pa.RecordBatch]:
        return list(rows) if rows and isinstance(rows[0], pa.RecordBatch) else batches(rows)

    def digests(self, sink: str) -> list[Replayed]:
        selection = self.selections.get(sink, WHOLE)
        found = [digest_partition(n, self._ready(rows), selection) for n, rows in enumerate(self.partitions)]
        return [replayed for replayed in found if replayed is not None]

    def drain(self) -> None:
        self.drained += 1


class Engine:
    """One query run after another over the same checkpoint location; `restart` is what a crash and a start are."""

    def __init__(self, location: str | Path, *sinks: Any, pipeline: str = "orders", **options: Any) -> None:
        self.location = str(location)
        self.pipeline = pipeline
        self.waits: list[float] = []
        #: Moves only while somebody waits: on a busy machine a failed attempt can be slow, and then comes a rest.
        self.now = 1_700_000_000.0
        self.planned: int | None = None
        self.committed: int | None = None
        self.options = options
        self.storage: Storage = options.pop("storage", None) or open_storage(self.location)
        self.start(*sinks)

    def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        clock = self.options.get("clock")
        if hasattr(clock, "now"):  # a test's own clock: time passes there too, else a retry would never end
            clock.now += seconds

    def tick(self, seconds: float = 60.0) -> None:
        """The timer, so much later."""
        self.now += seconds
        self.coordinator.tick()

    def start(self, *sinks: Any, **options: Any) -> Run:
        self.sinks = sinks
        settings: dict[str, Any] = {
            "loops": Inline(self._sleep),
            "clock": lambda: self.now,
            # Three attempts, after waits of 0.1 and 0.2 s.
            "retry": Retry(for_=0.25),
            **self.options,
            **options,
        }
        schema = settings.pop("schema", SCHEMA)
        self.log = CheckpointLog(self.storage, self.pipeline, retain=settings.pop("retain", RETAIN))
        self.coordinator = Coordinator(self.log, sinks, LoopTasks(), **settings)
        return self.coordinator.start(lambda: EnginePosition(self.planned, self.committed), schema)

    def restart(self, *sinks: Any, **options: Any) -> Run:
        """The old run is simply forgotten, as a killed process would be."""
        return self.start(*(sinks or self.sinks), **options)

    def run(self, checkpoint_id: int, *partitions: Sequence[Any], **options: Any) -> InProcessBatch:
        """What Spark does: plan the batch, call us, and commit it when we return."""
        batch = InProcessBatch(*partitions, **options)
        self.planned = max(checkpoint_id, -1 if self.planned is None else self.planned)
        self.coordinator.run(checkpoint_id, batch)
        self.committed = checkpoint_id
        return batch

    def settle(self, seconds: float = 60.0) -> None:
        """Wait for sinks that commit beside the next batch; raise what they failed with."""
        self.coordinator.drain(seconds)
        if self.coordinator.failure is not None:
            raise self.coordinator.failure

    def files(self, folder: str = "") -> list[str]:
        return self.storage.walk(folder)

    @property
    def pending(self) -> list[int]:
        return sorted({action.checkpoint_id for action in self.coordinator.pending})


class Endpoint:
    """A store of transactions and rows that outlives sinks, with switches to make it fail."""

    def __init__(self) -> None:
        self.prepared: dict[str, list[int]] = {}
        self.rows: list[int] = []
        self.committed: set[str] = set()
        self.calls: list[tuple[Any, ...]] = []
        #: what the next calls of a method do instead of working: an exception to raise or a value to return
        self.failures: dict[str, list[Any]] = {}
        #: while it is set, nothing can be sent
        self.down: Any = None

    def fail(self, method: str, *results: Any) -> None:
        self.failures.setdefault(method, []).extend(results)

    def call(self, method: str, *arguments: Any) -> Any:
        self.calls.append((method, *arguments))
        planned = self.failures.get(method)
        result = planned.pop(0) if planned else self.down if method == "send" else None
        if isinstance(result, BaseException):
            raise result
        return result

    def called(self, method: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == method]


class PreparingSink(TwoPhaseCommitSink):
    """A two-phase sink over an Endpoint, with every optional method."""

    def __init__(self, endpoint: Endpoint, name: str = "prepared", *, timeout: float | None = None) -> None:
        self.endpoint, self.name, self.transaction_timeout = endpoint, name, timeout
        self.state: Any = None

    def begin(self, task: Task) -> str:
        self.endpoint.call("begin", task.checkpoint_id, task.subtask)
        self.endpoint.prepared[task.token] = []
        return task.token

    def write(self, txn: str, batch: pa.RecordBatch) -> None:
        self.endpoint.call("write")
        self.endpoint.prepared[txn] += batch.column("id").to_pylist()

    def pre_commit(self, txn: str) -> dict[str, Any]:
        self.endpoint.call("pre_commit")
        return {"token": txn}

    def abort(self, txn: str) -> None:
        self.endpoint.call("abort", txn)
        self.endpoint.prepared.pop(txn, None)

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]], tasks: Any) -> Outcome | None:
        answer = self.endpoint.call("commit", checkpoint_id)
        if answer is not None:
            return answer
        tokens = [c["token"] for c in committables]
        if self.endpoint.committed.issuperset(tokens):
            return Outcome.ALREADY_COMMITTED
        for token in tokens:
            if token not in self.endpoint.committed:
                self.endpoint.rows += self.endpoint.prepared.pop(token)
                self.endpoint.committed.add(token)
        return None

    def recover(self, pipeline: str, generation: int, decided: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        kept = {c["token"] for committables in decided.values() for c in committables}
        self.endpoint.call("recover", generation, sorted(decided))
        for token in [t for t in self.endpoint.prepared if t not in kept]:
            del self.endpoint.prepared[token]

    def validate(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]], tasks: Any) -> None:
        self.endpoint.call("validate", checkpoint_id, len(committables))

    def open(self, run: Run) -> None:
        self.endpoint.call("open", run.generation)

    def close(self) -> None:
        self.endpoint.call("close")

    def initialize_state(self, state: Any) -> None:
        self.endpoint.call("initialize_state", state)
        self.state = state

    def snapshot_state(self, checkpoint_id: int) -> Any:
        self.endpoint.call("snapshot_state", checkpoint_id)
        return self.state

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.endpoint.call("complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.endpoint.call("aborted", checkpoint_id)


class LosingSink(PreparingSink):
    """Its endpoint drops the first transaction of a checkpoint after the decision, once."""

    repairable = True
    dropped = False

    def commit(self, checkpoint_id: int, committables: Any, tasks: Any) -> Outcome | None:
        if not self.dropped:
            self.dropped = True
            del self.endpoint.prepared[committables[0]["token"]]
            raise LostError("dropped", [committables[0]])
        return super().commit(checkpoint_id, committables, tasks)


class SendingSink(WriteAheadSink):
    """A write-ahead sink over an Endpoint."""

    def __init__(
        self, endpoint: Endpoint, committer: CheckpointCommitter, name: str = "sending", **options: Any
    ) -> None:
        super().__init__(committer=committer, **options)
        self.endpoint, self.name = endpoint, name

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: int, timestamp: int) -> bool:
        answer = self.endpoint.call("send", checkpoint_id)
        if answer is not None:
            return answer
        self.endpoint.rows += [i for batch in values for i in batch.column("id").to_pylist()]
        return True

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        super().notify_checkpoint_complete(checkpoint_id)
        self.endpoint.call("complete", checkpoint_id)


def damage(path: Path, how: str) -> bytes:
    """Spoil a file in one of three ways; returns what it held."""
    good = path.read_bytes()
    middle = len(good) // 2
    bad = {
        "truncated": good[:middle],
        "empty": b"",
        "bit flipped": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
    }[how]
    path.write_bytes(bad)
    return good


DAMAGES = ("truncated", "empty", "bit flipped")


def started(location: str, pipeline: str = "orders", **options: Any) -> CheckpointLog:
    log = CheckpointLog(LocalStorage(location), pipeline, **options)
    log.start()
    return log


def decide(log: CheckpointLog, checkpoint_id: int, *, sinks: tuple[str, ...] = ("a", "b")) -> None:
    committables = [Committable(sink, 0, {"v": checkpoint_id}, rows=3) for sink in sinks]
    log.decide(checkpoint_id, sinks, committables, timestamp=checkpoint_id, state={"a": {"n": checkpoint_id}})


def complete(log: CheckpointLog, checkpoint_id: int) -> None:
    decide(log, checkpoint_id)
    for sink in ("a", "b"):
        log.record_commit(checkpoint_id, sink, {"rows": 3})


def snapshot(location: str) -> dict[str, bytes]:
    storage = LocalStorage(location)
    return {name: storage.read(name) for name in storage.walk("")}
