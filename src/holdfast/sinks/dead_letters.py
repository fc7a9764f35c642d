"""`hf.DeadLetters`: where rows go that a sink does not take, and how many there may be; and the copy that we keep."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import pyarrow as pa

from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.dead import FOLDER, KEPT_BY, kept_name
from holdfast.checkpoint.ports import Run, SubtaskReport, Tasks
from holdfast.checkpoint.reports import copy_file
from holdfast.checkpoint.storage import Storage, open_storage
from holdfast.core.model import CheckpointId, Committable, Outcome
from holdfast.core.options import Limit, check_fields, number
from holdfast.core.repair import Replayed
from holdfast.errors import ConfigError, RecordError
from holdfast.sinks import wal
from holdfast.sinks.letters import MESSAGES, SCHEMA, as_taken, read_row
from holdfast.sinks.subtask import make_task, write_subtask
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.sinks.write_ahead import StagedSink


@dataclass(frozen=True)
class DeadLetters:
    """Rows that a sink refuses, or that a route rejects, go to `sink`, decided together with the good ones.

    Each with its reason, sink, column, checkpoint and content as JSON. Past a limit the batch fails before its
    decision: more than `max_rows` in a checkpoint, or more than `max_ratio` of its rows, where a checkpoint of fewer
    than 1,000 rows counts as one of 1,000. None means no such limit.
    """

    sink: TwoPhaseCommitSink
    max_ratio: Annotated[float, number("a number above 0 and up to 1", lambda value: 0 < value <= 1)] | None = 0.01
    max_rows: Limit = 1000

    def __post_init__(self) -> None:
        if not isinstance(self.sink, TwoPhaseCommitSink):
            raise ConfigError(
                f"DeadLetters: sink must be a sink that is not routed, not {type(self.sink).__name__}: it gets the "
                "columns of dead letters"
            )
        if self.sink.own_columns is not None:
            raise ConfigError(f"DeadLetters: sink {self.sink.name!r} gets the columns of letters: leave its own out")
        if self.sink.pattern is not None:
            self.sink.pattern.check(self.schema)
        check_fields(self)

    @property
    def schema(self) -> pa.Schema:
        """Of the rows that the sink gets."""
        return MESSAGES if self.sink.takes_messages else SCHEMA


class KeptLetters(StagedSink):
    """Keeps dead letters in the checkpoint location, each with its row, for `holdfast dead-letters`."""

    name = KEPT_BY
    overlaps = True
    #: tells the box that this one wants the rows too
    keeps_rows = True

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Copy them out of the log, where they would go with the checkpoint; tasks do it, since they are rows."""
        with wal.naming_lost(self.run.location, committables):
            tasks.map(_Keep(self.run.location, checkpoint_id), list(committables))
        self.forget_when_complete(checkpoint_id, committables)
        return Outcome.COMMITTED

    def write_kept(
        self,
        run: Run,
        sinks: Sequence[TwoPhaseCommitSink],
        pieces: Sequence[Mapping[str, Any]],
        checkpoint_id: CheckpointId,
        timestamp: int,
        tasks: Tasks,
        *,
        letters: Letters | None = None,
        repair: int = 0,
    ) -> list[SubtaskReport]:
        """See holdfast.checkpoint.dead.Keeper."""
        write = _WriteKept(run, list(sinks), checkpoint_id, timestamp, letters, repair)
        found = tasks.map(write, [dict(piece) for piece in pieces])
        return [SubtaskReport.parse(json.loads(text)) for text in found]

    def as_batch(self, committables: Sequence[Committable], checkpoint_id: CheckpointId, tasks: Tasks) -> LetterBatch:
        """What a repair takes letters from that a sink has lost: the copy that is decided with them."""
        files = {c.subtask: (c.data["handle"], kept_name(checkpoint_id, c.data["handle"])) for c in committables}
        return LetterBatch(self, files, tasks)


@dataclass(frozen=True)
class LetterBatch:
    """The letters of a checkpoint as a micro-batch of their own; see holdfast.checkpoint.ports.Batch."""

    keeper: KeptLetters
    #: subtask -> where its letters are: in the log, or copied out of it already
    files: Mapping[int, Sequence[str]]
    tasks: Tasks

    def write(
        self,
        run: Run,
        sinks: Sequence[TwoPhaseCommitSink],
        checkpoint_id: CheckpointId,
        timestamp: int,
        *,
        only: Collection[int] | None = None,
        repair: int = 0,
        careful: bool = False,
    ) -> list[SubtaskReport]:
        """Every subtask's letters to the sink that lost them."""
        chosen = [number for number in sorted(self.files) if only is None or number in only]
        pieces = [{"subtask": number, "places": list(self.files[number])} for number in chosen]
        return self.keeper.write_kept(run, sinks, pieces, checkpoint_id, timestamp, self.tasks, repair=repair)

    def digests(self, sink: str) -> list[Replayed]:
        """Not asked for: letters are compared when they are written."""
        raise NotImplementedError

    def drain(self) -> None:
        """The stream's own batch is drained."""


@dataclass(frozen=True)
class _Keep:
    """Runs in a task: copies one file of letters, whole or not at all."""

    location: str
    checkpoint_id: CheckpointId

    def __call__(self, handle: Mapping[str, Any]) -> None:
        storage = open_storage(self.location)
        target = kept_name(self.checkpoint_id, handle["handle"])
        try:
            found = copy_file(storage, handle["handle"], target)
        except FileNotFoundError:
            raise wal.lost(self.location, [handle]) from None
        if found != (handle["bytes"], handle["sha256"]):
            raise RecordError(f"{storage.url}/{handle['handle']} is damaged: its checksum does not fit")


@dataclass(frozen=True)
class _WriteKept:
    """Runs in a task: writes kept letters, or their rows, and pre-commits; the report as JSON."""

    run: Run
    sinks: list[TwoPhaseCommitSink]
    checkpoint_id: CheckpointId
    timestamp: int
    letters: Letters | None
    repair: int

    def __call__(self, piece: Mapping[str, Any]) -> str:
        # No other attempt may have it, and nobody counts the attempts of these tasks for us.
        attempt = secrets.randbits(40)
        tasks = [
            make_task(self.run, s.name, self.checkpoint_id, piece["subtask"], attempt, self.timestamp, self.repair)
            for s in self.sinks
        ]
        rows = self._letters(piece) if self.letters is None else self._rows(piece)
        report = write_subtask(self.sinks, tasks, rows, None, self.letters, careful=self.letters is not None)
        return json.dumps(asdict(report))

    def _letters(self, piece: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """The letters of a file, as the one sink takes them."""
        storage = open_storage(self.run.location)
        place = next((name for name in piece["places"] if _is_there(storage, name)), piece["places"][0])
        for batch in read_kept(storage, place):
            yield as_taken(self.sinks[0], batch)

    def _rows(self, piece: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """The rows of chosen letters, exactly as the sink was given them the first time; one schema, one batch."""
        storage = open_storage(self.run.location)
        for file, numbers in sorted(piece["files"].items()):
            kept = [batch.column("row") for batch in read_kept(storage, f"{FOLDER}/{file}")]
            every = pa.chunked_array(kept)
            chosen = [read_row(every[n].as_py()) for n in numbers]
            for _, alike in itertools.groupby(chosen, key=lambda row: row.schema.serialize().to_pybytes()):
                yield pa.Table.from_batches(list(alike)).combine_chunks().to_batches()[0]


def read_kept(storage: Storage, name: str) -> Iterator[pa.RecordBatch]:
    """The letters of a file."""
    with storage.reader(name) as file, pa.ipc.open_stream(file) as stream:
        yield from stream


def _is_there(storage: Storage, name: str) -> bool:
    try:
        return storage.size(name) > 0
    except FileNotFoundError:
        return False
