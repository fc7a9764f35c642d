"""`FileSink`: exactly-once into a folder of files that span many checkpoints."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.connectors.files import csvtext, formats
from holdfast.connectors.files.kept import Kept
from holdfast.connectors.files.marks import Mark, read_marks, write_mark
from holdfast.connectors.files.options import FileTasks
from holdfast.connectors.files.parts import Folder, read_what_is_left
from holdfast.connectors.files.perform import Performer
from holdfast.connectors.files.proof import check_place
from holdfast.connectors.files.publish import tidy
from holdfast.connectors.files.rolling import Part
from holdfast.connectors.files.sidecar import (
    STATE_BYTES,
    TARGET_BYTES,
    ends_of,
    files_of,
    get_state,
    parts_before_decision,
    parts_left,
)
from holdfast.connectors.files.starting import (
    after_take_over,
    check_change,
    committed_by,
    given_up,
    leave_out,
    mark_there,
    missing_parts,
    restored,
    set_others_aside,
)
from holdfast.connectors.files.state import Names, PartsState, is_state
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Outcome
from holdfast.errors import ConfigError, LostError, StaleCheckpointError
from holdfast.sinks.ledger import WAYS_OUT, check_ledger

#: smaller files say little about how large a file becomes
_TELLING = 1 << 20
#: bytes of the name of a folder
_LONGEST = 255


class FileSink(FileTasks):
    """Exactly-once into a folder: readers that skip hidden files see committed rows only, each once, in whole files.

    Needs a folder that driver and executors reach: a local disk on one machine, or an object store. Rows of many
    checkpoints share a file; they are seen when it is completed (`rolling`), and a query that ends well completes its
    last files. A completed file never changes. Everything else is under `_holdfast` in that folder: do not delete it,
    decided rows wait there. `path` may be a pattern over columns, such as "/data/{country}": then there is such a
    folder for each value, at most `max_targets` of them; `bucket_by` is cheaper where one folder will do.
    """

    _run: Run | None = None
    _most_state = STATE_BYTES

    def _reset(self) -> None:
        """Nothing is known of any run."""
        #: as the last record has it, and as the next decision will have it
        self._state = PartsState()
        self._next: PartsState | None = None
        self._fresh: list[Part] = []
        self._columns: tuple[tuple[str, str], ...] = ()
        self._mark = Mark()
        self._kept = Kept(self._most_state)
        #: checkpoint -> the lists of its parts, which nobody reads once it is complete
        self._lists: dict[CheckpointId, set[str]] = {}
        #: lineages whose name this one took, once the first sweep has seen them
        self._others: frozenset[str] | None = None
        #: what is looked at once a start: the state as it was read, and what is owed of it
        self._starting = True
        self._looked_for_lost = False
        #: files and rows this run has made visible
        self.completed: Counter[str] = Counter()

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need the options, not what the driver remembers."""
        return {
            **self.__dict__,
            "_run": None,
            "_state": PartsState(),
            "_next": None,
            "_fresh": [],
            "_mark": Mark(),
            "_told_state": (None, {}),
        }

    def for_target(self, target: str) -> FileSink:
        """See TwoPhaseCommitSink."""
        long = next((part for part in target.split("/") if len(part.encode()) > _LONGEST), None)
        if long is not None:
            raise ConfigError(f"the name of a folder has {len(long.encode())} bytes, and {_LONGEST} are allowed")
        made = copy.copy(self)
        made.path, made.pattern = target, None
        made._most_state = TARGET_BYTES
        made._reset()
        return made

    # -- on the driver: starting -----------------------------------------------------------------------------------

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink."""
        self._reset()
        self._run = run
        if run.schema is not None:
            self.check_columns(run.schema)
        folder = self._folder()
        check_place(self.name, folder.home, folder.storage.longest, self.path)
        with self._told():
            if run.take_over:
                # Marks of others are set aside with their work, in `recover`.
                write_mark(folder, run.lineage, Mark(committed_by(run, self.name)))
            marks = read_marks(folder)
        known = {lineage: mark.checkpoint for lineage, mark in marks.items()}
        ours = {run.lineage: known[run.lineage]} if run.take_over else known
        check_ledger(run, self._where, ours)
        self._mark = marks.get(run.lineage, Mark())

    def initialize_state(self, state: Any) -> None:
        """See TwoPhaseCommitSink."""
        with self._told():
            self._state = PartsState.from_json(get_state(self._folder_of(state), state), f"sink {self.name!r}")
        self._kept.recorded(state)
        if self._mark.roll >= self._state.next:
            raise StaleCheckpointError(
                f"sink {self.name!r} has completed more files in {self.path} than the checkpoint location "
                f"{self.run.location} knows of: it is an old copy. {WAYS_OUT}"
            )
        with self._told():
            moved = state is not None and self._moved_from(state["options"]["path"])
            if self.run.take_over:
                self._state = after_take_over(self.name, self.path, self._folder(), self._state)
            if self._starting:
                self._starting = False
                self._check_restored(moved=moved)
        if self.run.schema is not None:
            self.discards = check_change(
                self.name, self.path, self._state, self._in_files(self.run.schema), self.schema_change
            )

    def _check_restored(self, *, moved: bool) -> None:
        """What was committed here must be known here, and what waits for its file be there (rule 15)."""
        run, committed, folder = self.run, committed_by(self.run, self.name), self._folder()
        if moved and committed > self._mark.checkpoint:
            self._advance_mark(folder, Mark(committed))
        check_ledger(run, self._where, {run.lineage: self._mark.checkpoint}, sink=self.name)
        gone = [part for part in self._missing(folder) if part.first <= committed]
        if gone:
            raise restored(run, self.name, folder, gone, committed)

    def _missing(self, folder: Folder) -> list[Part]:
        """Parts that should be there; another driver that is about to stop may have completed their files just now."""
        if missing_parts(folder, self._state, self._mark.roll):
            self._mark = self._mark.join(read_marks(folder).get(self.run.lineage, Mark()))
        return missing_parts(folder, self._state, self._mark.roll)

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse columns that the format or the buckets cannot have."""
        self.buckets.check(schema)
        formats.check_types(self.name, self.format, self._in_files(schema))
        if self.format == "csv":
            csvtext.check_names(self.name, self._in_files(schema).names, self.csv_readers)

    def _in_files(self, schema: pa.Schema) -> pa.Schema:
        hidden = self.buckets.columns
        return pa.schema([field for field in schema if field.name not in hidden])

    def _moved_from(self, path: str) -> bool:
        """Whether the rows before went elsewhere; those that wait are there."""
        if path == self.path:
            return False
        before = Folder(path, self.run.pipeline, self.name)
        waiting = self._state.unseen(read_marks(before).get(self.run.lineage, Mark()).roll)
        if waiting:
            raise ConfigError(
                f"sink {self.name!r} had path {path!r}, and {waiting} decided rows wait there for their file: run "
                "`holdfast flush` with the checkpoint location first, or give the sink that path again"
            )
        self._state = replace(self._state, rolls=(), columns=())  # the new folder has no files yet, so no columns
        return True

    # -- on the driver: a checkpoint ---------------------------------------------------------------------------------

    def validate(self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks) -> None:
        """Nothing to refuse; the parts are noted, for the state that is saved with their decision."""
        form = {"format": self.format, "compression": self.compression}
        folder = self._folder()
        with self._told():
            self._fresh = [Part.from_json({**form, **part}) for part in parts_before_decision(folder, committables)]
        self._columns = tuple((name, kind) for name, kind in committables[-1]["columns"])

    def still_prepared(self, committables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Those whose parts are all there, whole (rule 14)."""
        folder = self._folder()
        with self._told():
            return [c for c in committables if all(folder.holds(part) for part in ends_of(folder, c))]

    def rows_of(self, committables: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch] | None:
        """See TwoPhaseCommitSink; of the parts that are there."""
        folder = self._folder()
        parts = [part for c in committables for part in parts_left(folder, c, self._state.parts)]
        return read_what_is_left(folder, parts)

    def give_up(self, committables: Sequence[Mapping[str, Any]]) -> Any:
        """See TwoPhaseCommitSink; their parts become no file."""
        files = files_of(self._folder(), committables, self._state.files)
        return self._json(leave_out(self.name, self.path, self._state, files))

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
        self._next = replace(state, columns=tuple({**dict(state.columns), **dict(self._columns)}.items()))
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
            self._kept.decided()
        if checkpoint_id > self._state.checkpoint:
            return Outcome.LOST
        known = self._mark.checkpoint >= checkpoint_id
        self._lists[checkpoint_id] = {c["list"] for c in committables if "list" in c}
        with self._told():
            try:
                self._act(tasks, checkpoint_id)
            except LostError as error:
                raise self._naming(error, committables) from error
        return Outcome.ALREADY_COMMITTED if known else Outcome.COMMITTED

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """See TwoPhaseCommitSink. What a driver that dies before it leaves behind, the next start removes."""
        with self._told():
            self._folder().delete_parts(self._lists.pop(checkpoint_id, ()))

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """Remove hidden files that no record names; see TwoPhaseCommitSink."""
        folder = self._folder(pipeline)
        with self._told():
            owed = [c for committables in decided.values() for c in committables]
            keep = files_of(folder, owed, self._state.files)
            if not self._looked_for_lost:
                self._looked_for_lost = True
                tidy(folder, self.run.lineage, generation, self._mark.roll)
                committed, gone = committed_by(self.run, self.name), self._missing(folder)
                left_out = given_up(self._state, self._mark, committed, gone, keep)
                self._state = leave_out(self.name, self.path, self._state, left_out)
            keep |= {part.file for part in self._state.waiting}
            for roll in self._state.rolls:
                if roll.number > self._mark.roll:
                    keep |= {part.file for part in roll.parts}
            if self.run.take_over or self.run.set_aside:
                self._others = set_others_aside(self.name, folder, self.run, keep, self._others)
            folder.sweep(self.run.lineage, generation, keep)
            self._kept.sweep(folder, self.run)

    # -- on the driver: between checkpoints (see holdfast.checkpoint.maintenance) ------------------------------

    def revise_state(self, now: float, *, last: bool) -> Any:
        """The state with files that are due planned in it, or None when none is."""
        state = self._state.advance(
            (), self.rolling, self._names(), now=now, done=self._mark.roll, checkpoint=None, last=last
        )
        return None if state.next == self._state.next else self._json(state)

    def act_on_state(self, tasks: Tasks) -> None:
        """Complete what the recorded state says; which checkpoints are committed is for `commit` to say."""
        if any(roll.number > self._mark.roll for roll in self._state.rolls):
            with self._told():
                try:
                    self._act(tasks, self._mark.checkpoint)
                except LostError as error:
                    raise self._naming(error, ()) from error

    # -- inside -----------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The query run this sink is part of."""
        if self._run is None:
            raise ConfigError(f"sink {self.name!r} is not part of a running query")
        return self._run

    @property
    def state(self) -> PartsState:
        """What is decided and waits."""
        return self._state

    def _act(self, tasks: Tasks, checkpoint_id: CheckpointId) -> None:
        folder, run = self._folder(), self.run
        self._mark = mark_there(folder, run, self.name, self._where, self._mark)
        todo = [roll for roll in self._state.rolls if roll.number > self._mark.roll]
        done = Performer(self.path, self.name, run).perform(tasks, todo) if todo else {}
        self._advance_mark(folder, Mark(checkpoint_id, max(done, default=-1)))
        # Only now: until the mark is durable, they prove that a file someone took away was never there.
        needed = {part.file for part in self._state.needed(self._mark.roll)}
        folder.delete_parts({part.file for roll in todo for part in roll.parts} - needed)
        if todo:
            tidy(folder, run.lineage, run.generation, self._mark.roll)
        seen = [roll for roll in todo if not roll.hidden]
        self.completed.update(files=len(seen), rows=sum(roll.rows for roll in seen))
        merged = {roll.target: done[roll.number] for roll in todo if roll.hidden}
        written = [
            (done[roll.number].bytes, roll.bytes) for roll in todo if not roll.hidden and done[roll.number].bytes
        ]
        size, raw = sum(new for new, _ in written), sum(old for _, old in written)
        learned = {file: (known.bytes, known.sha256) for file, known in merged.items()}
        self._state = self._state.learn(learned, size / raw if raw >= _TELLING else None)

    def _advance_mark(self, folder: Folder, to: Mark) -> None:
        mark = self._mark.join(to)
        if mark != self._mark:
            with faults.point("commit.mark"):
                write_mark(folder, self.run.lineage, mark)
            self._mark = mark

    def _naming(self, error: LostError, committables: Sequence[Mapping[str, Any]]) -> Exception:
        """Which committables of this checkpoint are lost; if none is, rows of older ones are, which were committed."""
        folder = self._folder()
        files = {part["file"] for part in error.lost}
        lost = [
            c
            for c in committables
            if any(file in files or not folder.exists(folder.hidden(file)) for file in files_of(folder, [c], files))
        ]
        gone = [part for part in self._missing(folder) if part.file in files]
        if lost or not gone:
            return LostError(str(error), lost=lost)
        return restored(
            self.run, self.name, folder, gone, max(self._mark.checkpoint, committed_by(self.run, self.name))
        )

    def _folder(self, pipeline: str | None = None) -> Folder:
        return Folder(self.path, pipeline or self.run.pipeline, self.name)

    def _names(self) -> Names:
        return Names(self.run.lineage, self.name, self.run.generation)

    @property
    def _where(self) -> str:
        return f"the ledger of sink {self.name!r} in {self.path}"

    def _json(self, state: PartsState) -> dict[str, Any]:
        with self._told():
            return self._kept.put(self._folder(), self.run, state, self._options)

    def _folder_of(self, state: Any) -> Folder:
        """Where a state's files are: at the path it was made for."""
        path = state["options"]["path"] if is_state(state) else self.path
        return Folder(path, self.run.pipeline, self.name)
