"""Writing when a sink refuses rows: find them, set them aside, write the rest.

Only done when a first, plain attempt at the batch has met a RowError; then the batch runs once more, and its rows are
spooled to a local file first, because finding bad rows takes several passes. A sink that says which rows it refuses
(`RowError.rows`) is believed; of any other the rows are halved until single ones are refused. Each try is a transaction
of its own, which is aborted, so that the one that counts has never met a bad row.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType

import numpy as np
import pyarrow as pa

from holdfast.core.model import Committable
from holdfast.errors import RowError
from holdfast.sinks.channel import Channel
from holdfast.sinks.digest import Digest
from holdfast.sinks.letters import Box
from holdfast.sinks.selection import Selection

#: how often all rows are written anew because a sink refuses them together and not one by one
_PASSES = 5


class Spool:
    """The batches of a partition on the local disk, to be read again and again."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="holdfast-", suffix=".arrow")  # noqa: SIM115  closed by __exit__
        self._stream: pa.RecordBatchStreamWriter | None = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch."""
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._file.name, batch.schema)
        self._stream.write_batch(batch)

    def close(self) -> None:
        """All are there."""
        if self._stream is not None:
            self._stream.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._stream is not None:
            with pa.memory_map(self._file.name) as file, pa.ipc.open_stream(file) as stream:
                yield from stream


class Careful:
    """One sink's rows of a partition."""

    def __init__(self, channel: Channel, selection: Selection, spool: Spool, box: Box) -> None:
        self._channel, self._selection, self._spool, self._box = channel, selection, spool, box
        #: batch -> the numbers of its rows that are set aside
        self._aside: dict[int, set[int]] = {}
        self.digest = Digest()

    def write(self) -> Committable | None:
        """All good rows in one transaction, pre-committed; the others in the box."""
        for _ in range(_PASSES):
            try:
                if self._pass():
                    return self._channel.prepare()
            except RowError as error:  # only when all is written does this sink look at it
                self._channel.undo(error)
                if not self._search(deep=True):
                    raise
        raise RowError(
            f"sink {self._channel.sink.name!r} refuses rows together that it takes one by one, and never the same ones"
        )

    def _pass(self) -> bool:
        """Write all that is not set aside; False when some more had to be: then nothing is written."""
        clean, self.digest = True, Digest(hashed=self._channel.hashed)
        for number, rows, places in self._parts():
            try:
                self._channel.write(rows)
                self.digest.add(rows)
            except RowError as error:
                clean = False
                self._channel.undo(error)
                if not self._find(number, rows, places, deep=False):
                    raise
        if not clean:
            self._channel.undo(None)
        return clean

    def _parts(self) -> Iterator[tuple[int, pa.RecordBatch, list[int]]]:
        """Each batch's rows for this sink that are not set aside, with their numbers."""
        for number, batch in enumerate(self._spool):
            rows = self._selection.split(batch)[0]
            aside = self._aside.get(number, ())
            places = [n for n in range(rows.num_rows) if n not in aside] if aside else list(range(rows.num_rows))
            if places:
                yield number, rows.take(pa.array(places)) if aside else rows, places

    def _search(self, *, deep: bool) -> bool:
        """Look for bad rows in every batch; whether there were any."""
        found = [self._find(number, rows, places, deep=deep) for number, rows, places in self._parts()]
        return any(found)

    def _find(self, number: int, rows: pa.RecordBatch, places: list[int], *, deep: bool) -> bool:
        """Set aside what the sink refuses of these rows; whether there was anything."""
        found, waiting = False, [np.arange(rows.num_rows)]
        while waiting:
            some = waiting.pop()
            part = rows.take(pa.array(some))
            error = self._try(part, deep=deep)
            if error is None:
                continue
            named = [n for n in error.rows if 0 <= n < len(some)]
            if len(some) == 1:
                named = [0]
            if named:
                found = True
                self._aside.setdefault(number, set()).update(places[some[n]] for n in named)
                self._box.add(self._channel.sink.name, part.take(pa.array(named)), error)
                rest = np.delete(some, named)
                waiting += [rest] if len(rest) else []
            else:
                middle = len(some) // 2
                waiting += [some[middle:], some[:middle]]
        return found

    def _try(self, rows: pa.RecordBatch, *, deep: bool) -> RowError | None:
        """Whether the sink takes these rows, by a transaction that is aborted."""
        try:
            self._channel.write(rows)
            if deep:
                self._channel.prepare()
        except RowError as error:
            self._channel.undo(error)
            return error
        self._channel.undo(None)
        return None
