"""What happens in one task: one pass over a partition, into every sink, each its own rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa

from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.ports import Run, SubtaskReport
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Committable
from holdfast.core.naming import Task
from holdfast.core.repair import Replayed
from holdfast.errors import RowError
from holdfast.sinks.careful import Careful, Spool
from holdfast.sinks.channel import Channel
from holdfast.sinks.channel import current_task as current_task
from holdfast.sinks.channel import running as running
from holdfast.sinks.digest import Digest
from holdfast.sinks.letters import Box
from holdfast.sinks.selection import WHOLE, Selection, Selections
from holdfast.sinks.two_phase import TwoPhaseCommitSink


def make_task(
    run: Run,
    sink: str,
    checkpoint_id: CheckpointId,
    subtask: int,
    attempt: int,
    timestamp: int,
    repair: int = 0,
    place: int | None = None,
) -> Task:
    """The identity of one attempt at one sink."""
    return Task(
        run.pipeline,
        sink,
        run.lineage,
        run.generation,
        checkpoint_id,
        subtask,
        attempt,
        timestamp,
        run.location,
        repair,
        place,
    )


def digest_partition(subtask: int, batches: Iterable[pa.RecordBatch], selection: Selection = WHOLE) -> Replayed | None:
    """What a partition holds for a sink, None when that is nothing; the rows go nowhere."""
    digest = Digest()
    for batch in batches:
        digest.add(selection.split(batch)[0])
    return Replayed(subtask, digest.rows, digest.text or "") if digest.rows else None


def write_subtask(
    sinks: Sequence[TwoPhaseCommitSink],
    tasks: Sequence[Task],
    batches: Iterable[pa.RecordBatch],
    selections: Selections | None = None,
    letters: Letters | None = None,
    *,
    careful: bool = False,
) -> SubtaskReport:
    """Write a partition to every sink and pre-commit; on any failure abort them all.

    A transaction is begun with the first rows, so that an empty partition opens none. The iterator is always drained:
    a stateful query that is not is bricked. `letters` says which of the sinks take dead letters; `careful` finds the
    rows that a sink refuses, and sets them aside.
    """
    everyone = [Channel(sink, task) for sink, task in zip(sinks, tasks, strict=True)]
    taking = letters.sinks if letters is not None else ()
    box = Box(tasks[0], [c for c in everyone if c.sink.name in taking], letters, counting=careful)
    streams = _streams([c for c in everyone if c.sink.name not in taking], selections or {}, box)
    rows = size = 0
    try:
        with ExitStack() as stack:
            spool = stack.enter_context(Spool()) if careful else None
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                for stream in streams:
                    stream.write(batch, keep=spool is not None)
                if spool is not None:
                    spool.add(batch)
                rows += batch.num_rows
                size += batch.nbytes
                with faults.point("task.write"):
                    pass
            rejected = box.count
            committables = [found for stream in streams for found in stream.prepare(spool)]
        committables += box.prepare()
        written = {name: told for stream in streams for name, told in stream.written.items()} | box.written
        with faults.point("task.prepared"):
            return SubtaskReport(
                tasks[0].subtask, rows, size, tuple(committables), written,
                box.count, box.count > rejected, tuple(box.first),
                {c.sink.name: dict(c.discarded) for c in everyone if c.discarded},
            )  # fmt: skip
    except BaseException as error:
        for channel in everyone:
            channel.abort(error)
        raise


class _Stream:
    """The sinks that get the same rows, which are filtered, projected and hashed once for all of them."""

    def __init__(self, selection: Selection, channels: Sequence[Channel], box: Box) -> None:
        self.selection, self.channels, self._box = selection, channels, box
        self._digest = Digest(hashed=any(channel.hashed for channel in channels))
        #: sink -> rows and digest
        self.written: dict[str, tuple[int, str | None]] = {}

    def write(self, batch: pa.RecordBatch, *, keep: bool) -> None:
        """Give each its rows, or keep them for later; what the route rejects goes to the box."""
        if keep and self.selection.reject is None:
            return
        rows, bad = self.selection.split(batch)
        if bad is not None:
            for channel in self.channels:
                self._box.add(channel.sink.name, bad, self._rejected(channel))
        if rows.num_rows and not keep:
            self._digest.add(rows)
            for channel in self.channels:
                channel.write(rows)

    def prepare(self, spool: Spool | None) -> list[Committable]:
        """Pre-commit each."""
        found = []
        for channel in self.channels:
            if spool is None:
                committable, digest = channel.prepare(), self._digest.text
            else:
                careful = Careful(channel, self.selection, spool, self._box)
                committable, digest = careful.write(), careful.digest.text
            if channel.rows:
                self.written[channel.sink.name] = (channel.rows, digest)
            if committable is not None:
                found.append(replace(committable, digest=digest if channel.sink.repairable else None))
        return found

    def _rejected(self, channel: Channel) -> RowError:
        rule = self.selection.rule
        return RowError(f"sink {channel.sink.name!r}: its route rejects rows with {rule}", reason=f"rejected: {rule}")


def _streams(channels: Sequence[Channel], selections: Selections, box: Box) -> list[_Stream]:
    by_selection: dict[Selection, list[Channel]] = {}
    for channel in channels:
        by_selection.setdefault(selections.get(channel.sink.name, WHOLE), []).append(channel)
    return [_Stream(selection, sharing, box) for selection, sharing in by_selection.items()]
