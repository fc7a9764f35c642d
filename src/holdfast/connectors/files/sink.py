"""`FileSink`: exactly-once into a folder of files that span many checkpoints."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.connectors.files import formats
from holdfast.connectors.files.buckets import Buckets, TimeBucket
from holdfast.connectors.files.complete import Complete, Done
from holdfast.connectors.files.marks import Mark, read_marks, remove_others, write_mark
from holdfast.connectors.files.parts import Folder
from holdfast.connectors.files.rolling import Part, Rolling
from holdfast.connectors.files.state import Names, State
from holdfast.connectors.files.task import TaskFiles
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task, check_name
from holdfast.errors import ConfigError, StaleCheckpointError
from holdfast.sinks.ledger import WAYS_OUT, check_ledger
from holdfast.sinks.two_phase import TwoPhaseCommitSink

logger = logging.getLogger("holdfast")
#: Where an object is there as a whole or not at all.
STORES = ("file", "s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss")
#: smaller files say little about how large a file becomes
_TELLING = 1 << 20


class FileSink(TwoPhaseCommitSink):
    """Exactly-once into a folder: readers that skip hidden files see committed rows only, each once, in whole files.

    Needs a folder that driver and executors reach: a local disk on one machine, or an object store. Rows of many
    checkpoints share a file; they are seen when it is completed (`rolling`), and a query that ends well completes its
    last files. A completed file never changes. Everything else is under `_holdfast` in that folder: do not delete it,
    decided rows wait there.
    """

    def __init__(
        self,
        path: str,
        format: str = "parquet",
        *,
        bucket_by: str | TimeBucket | Sequence[str | TimeBucket] = (),
        rolling: Rolling | None = None,
        compression: str | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(path, str | Path) or not str(path).strip("/"):
            raise ConfigError(f"path must be a folder or the URL of one, not {path!r}")
        if rolling is not None and not isinstance(rolling, Rolling):
            raise ConfigError(f"rolling must be hf.Rolling(size=..., age=..., inactivity=...), not {rolling!r}")
        text = str(path)
        scheme, _, rest = text.partition("://")
        if rest and scheme not in STORES:
            raise ConfigError(
                f"path must be local or on one of {', '.join(STORES)}, where a file appears as a whole: on {scheme!r} "
                "a file that a killed driver left half written would be taken for a committed one"
            )
        self.path = text.rstrip("/") if ":" in text.split("/")[0] else str(Path(text).absolute())
        self._format, self.compression = formats.choose(format, compression)
        self.format = format
        self.buckets = Buckets.of(bucket_by)
        self.rolling = rolling or Rolling()
        self.name = check_name("name", name or _default_name(self.path))
        self._run: Run | None = None
        self._reset()

    def _reset(self) -> None:
        #: as the last record has it, and as the next decision will have it
        self._state = State()
        self._next: State | None = None
        self._fresh: list[Part] = []
        self._columns: tuple[tuple[str, str], ...] = ()
        self._mark = Mark()
        #: files and rows this run has made visible
        self.completed: Counter[str] = Counter()

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need the options, not what the driver remembers."""
        return {**self.__dict__, "_run": None, "_state": State(), "_next": None, "_fresh": [], "_mark": Mark()}

    # -- in the task ------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> TaskFiles:
        """See TwoPhaseCommitSink."""
        return TaskFiles(self._folder(task.pipeline), task, self.buckets, self.rolling.size_bytes)

    def write(self, txn: TaskFiles, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        txn.write(batch)

    def pre_commit(self, txn: TaskFiles) -> Mapping[str, Any] | None:
        """See TwoPhaseCommitSink."""
        return {"version": 1, "columns": txn.columns, "parts": txn.seal()}

    def abort(self, txn: TaskFiles) -> None:
        """See TwoPhaseCommitSink."""
        txn.discard()

    # -- on the driver: starting -----------------------------------------------------------------------------------

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink."""
        self._reset()
        self._run = run
        if run.schema is not None:
            self._check(run.schema)
        folder = self._folder()
        if run.take_over:
            write_mark(folder, run.lineage, Mark())
            remove_others(folder, run.lineage)
        marks = read_marks(folder)
        where = f"the ledger of sink {self.name!r} in {self.path}"
        check_ledger(run, where, {lineage: mark.checkpoint for lineage, mark in marks.items()})
        self._mark = marks.get(run.lineage, Mark())

    def initialize_state(self, state: Any) -> None:
        """See TwoPhaseCommitSink."""
        self._state = State.from_json(state, f"sink {self.name!r}")
        if self._mark.roll >= self._state.next:
            raise StaleCheckpointError(
                f"sink {self.name!r} has completed more files in {self.path} than the checkpoint location "
                f"{self.run.location} knows of: it is an old copy. {WAYS_OUT}"
            )
        if state is not None:
            self._check_place(state["options"])
        if self._run is not None and self._run.take_over:
            self._state = self._without_missing(self._state)
        self._check_change()

    def _check(self, schema: pa.Schema) -> None:
        self.buckets.check(schema)
        formats.check_types(self.name, self.format, self._in_files(schema))

    def _in_files(self, schema: pa.Schema) -> pa.Schema:
        hidden = self.buckets.columns
        return pa.schema([field for field in schema if field.name not in hidden])

    def _check_place(self, options: Mapping[str, Any]) -> None:
        """The rows that wait are where the path was when they came."""
        if options["path"] == self.path:
            return
        before = Folder(options["path"], self.run.pipeline, self.name)
        waiting = self._state.unseen(read_marks(before).get(self.run.lineage, Mark()).roll)
        if waiting:
            raise ConfigError(
                f"sink {self.name!r} had path {options['path']!r}, and {waiting} decided rows wait there for their "
                "file: run `holdfast flush` with the checkpoint location first, or give the sink that path again"
            )
        self._state = replace(self._state, rolls=())

    def _check_change(self) -> None:
        """Files of one folder are read together: where types are part of the file, a column must keep its own."""
        if self._run is None or self._run.schema is None or not self._format.typed:
            return
        now = dict(formats.columns(formats.normal(self._in_files(self._run.schema))))
        for column, before in self._state.columns:
            if now.get(column, before) != before:
                raise ConfigError(
                    f"sink {self.name!r}: column {column!r} is {now[column]} now and was {before} in the files of "
                    f"{self.path}: readers cannot read both. Cast it back, or write into a new folder; new columns, "
                    "and leaving columns out, are fine"
                )

    def _without_missing(self, state: State) -> State:
        """After a take-over: what a newer state of this location completed already is not here any more."""
        folder = self._folder()
        rolls = tuple(
            roll
            for roll in state.rolls
            if all(folder.exists(folder.hidden(part.file)) for part in roll.parts)
            or folder.exists(folder.hidden(roll.target) if roll.hidden else roll.target)
        )
        planned = {roll.target for roll in rolls}
        waiting = tuple(p for p in state.waiting if p.file in planned or folder.exists(folder.hidden(p.file)))
        kept = replace(state, waiting=waiting, rolls=rolls)
        lost = state.unseen(-1) - kept.unseen(-1)
        if lost:
            logger.warning(
                "sink %s: %d rows that waited in %s are not there any more; the location that was taken over from "
                "has completed them",
                self.name,
                lost,
                self.path,
            )
        return kept

    # -- on the driver: a checkpoint ---------------------------------------------------------------------------------

    def validate(self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks) -> None:
        """Nothing to refuse; the parts are noted, for the state that is saved with their decision."""
        self._fresh = [Part.from_json(part) for committable in committables for part in committable["parts"]]
        self._columns = tuple((name, kind) for name, kind in committables[-1]["columns"])

    def snapshot_state(self, checkpoint_id: CheckpointId) -> Any:
        """See TwoPhaseCommitSink."""
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return self._json(self._state)
        state = self._state.advance(
            fresh,
            self.rolling,
            self._names(),
            now=max(part.until for part in fresh) / 1000,
            done=self._mark.roll,
            checkpoint=checkpoint_id,
        )
        self._next = replace(state, columns=self._columns)
        return self._json(self._next)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """See TwoPhaseCommitSink."""
        self._fresh, self._next = [], None

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Complete the files that are due with this checkpoint; its other rows wait, decided, for theirs."""
        if self._next is not None and self._next.checkpoint == checkpoint_id:
            self._state, self._next = self._next, None
        if checkpoint_id > self._state.checkpoint:
            return Outcome.LOST
        known = self._mark.checkpoint >= checkpoint_id
        self._act(tasks, checkpoint_id)
        return Outcome.ALREADY_COMMITTED if known else Outcome.COMMITTED

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """Remove hidden files that no record names; see TwoPhaseCommitSink."""
        keep = {part["file"] for committables in decided.values() for c in committables for part in c["parts"]}
        keep |= {part.file for part in self._state.waiting}
        for roll in self._state.rolls:
            if roll.number > self._mark.roll:
                keep |= {part.file for part in roll.parts}
        self._folder(pipeline).sweep(self.run.lineage, generation, keep)

    # -- on the driver: between checkpoints (see holdfast.checkpoint.upkeep) -----------------------------------------

    def revise_state(self, now: float, *, last: bool) -> Any:
        """The state with files that are due planned in it, or None when none is."""
        state = self._state.advance(
            (), self.rolling, self._names(), now=now, done=self._mark.roll, checkpoint=None, last=last
        )
        return None if state.next == self._state.next else self._json(state)

    def act_on_state(self, tasks: Tasks) -> None:
        """Complete what the recorded state says."""
        if any(roll.number > self._mark.roll for roll in self._state.rolls):
            self._act(tasks, self._state.checkpoint)

    # -- inside -----------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The query run this sink is part of."""
        if self._run is None:
            raise ConfigError(f"sink {self.name!r} is not part of a running query")
        return self._run

    @property
    def state(self) -> State:
        """What is decided and waits."""
        return self._state

    def _act(self, tasks: Tasks, checkpoint_id: CheckpointId) -> None:
        folder, run = self._folder(), self.run
        todo = [roll for roll in self._state.rolls if roll.number > self._mark.roll]
        complete = Complete(
            self.path, run.pipeline, self.name, run.lineage, run.generation, self.format, self.compression
        )
        done: dict[int, Done] = {}
        while left := [roll for roll in todo if roll.number not in done]:
            # A part that is still to be merged can be one of those that make a file.
            unmade = {roll.target for roll in left if roll.hidden}
            ready = [roll for roll in left if unmade.isdisjoint(part.file for part in roll.parts)]
            done.update((made.number, made) for made in tasks.map(complete, ready))
        mark = self._mark.join(Mark(checkpoint_id, max(done, default=-1)))
        if mark != self._mark:
            with faults.point("commit.mark"):
                write_mark(folder, run.lineage, mark)
            self._mark = mark
        # Only now: until the mark is durable, they prove that a file someone took away was never there.
        folder.delete_parts(part.file for roll in todo for part in roll.parts)
        seen = [roll for roll in todo if not roll.hidden]
        self.completed.update(files=len(seen), rows=sum(roll.rows for roll in seen))
        merged = {roll.target: done[roll.number] for roll in todo if roll.hidden}
        written = [
            (done[roll.number].bytes, roll.bytes) for roll in todo if not roll.hidden and done[roll.number].bytes
        ]
        size, raw = sum(new for new, _ in written), sum(old for _, old in written)
        learned = {file: (known.bytes, known.sha256) for file, known in merged.items()}
        self._state = self._state.learn(learned, size / raw if raw >= _TELLING else None)

    def _folder(self, pipeline: str | None = None) -> Folder:
        return Folder(self.path, pipeline or self.run.pipeline, self.name)

    def _names(self) -> Names:
        suffix = self._format.suffix + self._format.compressions[self.compression]
        return Names(self.run.lineage, self.name, self.run.generation, suffix)

    def _json(self, state: State) -> dict[str, Any]:
        return state.to_json({"path": self.path, "format": self.format, "compression": self.compression})


def _default_name(path: str) -> str:
    """After the folder; what makes no name is left out."""
    last = "".join(c for c in path.rpartition("/")[2] if c.isalnum() or c in "-_.")
    return f"files-{last}".encode()[:60].decode(errors="ignore").rstrip(".-")
