"""Making one file of parts, in a task: whoever does it, however often, gets the same file under the same name (F4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.connectors.files.formats import of_file
from holdfast.connectors.files.marks import Mark, read_marks
from holdfast.connectors.files.pack import read_piece
from holdfast.connectors.files.parts import IPC, Folder, Hashing, check_part, checksum, read_part, read_schema
from holdfast.connectors.files.publish import Finished, show, sync_hidden, sync_shown, writing
from holdfast.connectors.files.rolling import Part, Roll
from holdfast.core import faults
from holdfast.errors import LostError, RecordError, RowError


@dataclass(frozen=True)
class Done:
    """A roll that is done."""

    number: int
    #: of the file it made; a committed one that was there already is not looked into
    bytes: int = 0
    sha256: str | None = None
    #: where it is, unless it is a part, or was seen already
    finished: Finished | None = None


@dataclass(frozen=True)
class Show:
    """Runs in a task: make announced files visible."""

    root: str
    pipeline: str
    sink: str

    def __call__(self, files: Sequence[Finished]) -> int:
        """How many were hidden until now."""
        folder = Folder(self.root, self.pipeline, self.sink)
        shown = sum(self._show(folder, file) for file in files)
        sync_shown(folder, files)
        return shown

    def _show(self, folder: Folder, file: Finished) -> bool:
        with faults.point("commit.subtask"):
            return show(folder, file)


@dataclass(frozen=True)
class Complete:
    """Runs in a task: write the file of one roll under a hidden name; a part under its own, unless it is there."""

    root: str
    pipeline: str
    sink: str
    lineage: str
    generation: int

    def __call__(self, rolls: Sequence[Roll]) -> list[Done]:
        """The rolls, done."""
        folder = Folder(self.root, self.pipeline, self.sink)
        done = [self._merge(folder, roll) if roll.hidden else self._complete(folder, roll) for roll in rolls]
        sync_hidden(folder, [one.finished for one in done if one.finished is not None])
        return done

    def _merge(self, folder: Folder, roll: Roll) -> Done:
        with faults.point("commit.subtask"):
            return self._complete(folder, roll)

    def _complete(self, folder: Folder, roll: Roll) -> Done:
        # A file that is not announced is there only if a version without announcements put it there.
        if not folder.exists(_target(folder, roll)):
            try:
                return self._write(folder, roll)
            except FileNotFoundError:
                # Another driver may have completed it meanwhile, and removed its parts.
                if not self._is_done(folder, roll):
                    self._explain(folder, roll)
                    raise
        if roll.hidden and folder.exists(_target(folder, roll)):
            return Done(roll.number, *checksum(folder, roll.target))
        return Done(roll.number)

    def _write(self, folder: Folder, roll: Roll) -> Done:
        for part in roll.parts:
            if part.offset < 0:  # a piece of a pack is checked when it is read
                check_part(folder, part)
        schema = read_schema(folder, roll.parts[0].file)
        try:
            return self._publish(folder, roll, schema)
        except (pa.ArrowInvalid, pa.ArrowCapacityError, UnicodeError) as error:
            # Rows are proved before they are decided; those of the first version were not.
            raise RowError(
                f"sink {self.sink!r}: rows of checkpoints {roll.parts[0].first} to {roll.parts[-1].last} cannot be "
                f"written into {folder.url(roll.target)}: {error}. They wait below {folder.url(folder.home)}: give "
                "them up with `holdfast resolve`"
            ) from error

    def _publish(self, folder: Folder, roll: Roll, schema: pa.Schema) -> Done:
        rows = _rows(folder, roll.parts)
        if roll.hidden:
            with folder.publish(roll.target, self.lineage, self.generation) as file:
                out = Hashing(file)
                _write_ipc(out, schema, rows)
            return Done(roll.number, out.length, out.hexdigest())
        with writing(folder, roll.number, roll.target, self.lineage, self.generation) as place:
            out = Hashing(place.file)
            form, compression = of_file(roll.target, roll.parts[0].format, roll.parts[0].compression)
            form.write(out, schema, rows, compression)
        return Done(roll.number, out.length, out.hexdigest(), place.finished)

    def _is_done(self, folder: Folder, roll: Roll) -> bool:
        """There, or completed and then taken away: by whoever reads the folder, or by a later roll."""
        if folder.exists(_target(folder, roll)):
            return True
        return read_marks(folder).get(self.lineage, Mark()).roll >= roll.number

    def _explain(self, folder: Folder, roll: Roll) -> None:
        gone = [part for part in roll.parts if not folder.exists(folder.hidden(part.file))]
        if gone:
            raise lost(folder, self.sink, gone) from None


def lost(folder: Folder, sink: str, parts: Sequence[Part]) -> LostError:
    """Parts that are gone and in no committed file; `lost` has their files, which the sink knows as committables."""
    rows, first = sum(part.rows for part in parts), min(part.first for part in parts)
    more = "" if len(parts) == 1 else f" and {len(parts) - 1} more"
    return LostError(
        f"sink {sink!r}: {folder.url(folder.hidden(parts[0].file))}{more} is missing, and with it {rows} rows of "
        f"checkpoints {first} to {max(part.last for part in parts)} that are decided and in no committed file: restore "
        "it from a copy of the folder, or give these rows up with `holdfast resolve`",
        lost=[{"file": part.file, "first": part.first, "last": part.last, "rows": part.rows} for part in parts],
    )


def _target(folder: Folder, roll: Roll) -> str:
    return folder.hidden(roll.target) if roll.hidden else roll.target


def _rows(folder: Folder, parts: tuple[Part, ...]) -> Iterator[pa.RecordBatch]:
    """The rows of all parts; as many as were sealed, or an error before the file is there."""
    for part in parts:
        count = 0
        for batch in read_piece(folder, part) if part.offset >= 0 else read_part(folder, part.file):
            count += batch.num_rows
            yield batch
        if count != part.rows:
            raise RecordError(
                f"{folder.url(folder.hidden(part.file))} is damaged: it has {count} rows, and {part.rows} were sealed. "
                "Restore it from a copy of the folder"
            )


def _write_ipc(file: Hashing, schema: pa.Schema, rows: Iterator[pa.RecordBatch]) -> None:
    with pa.ipc.new_stream(pa.PythonFile(file, mode="w"), schema, options=IPC) as stream:
        for batch in rows:
            stream.write_batch(batch)
