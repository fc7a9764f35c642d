"""What a check of the contract works with: rows to send, queries to run, and how to judge what came out."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run
from holdfast.core.model import CheckpointId, Committable, Outcome
from holdfast.sinks.idempotent import IdempotentSink
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.sinks.write_ahead import WriteAheadSink
from holdfast.testing.audit import audit
from holdfast.testing.local import LocalBatch, LocalQuery, LocalRun, PickledTasks, armed

Row = dict[str, Any]
GUARANTEES = ("exactly-once", "effectively-once", "at-least-once")
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
_SHOWN = 5
#: checkpoint locations are kept in memory where they can be: no check here crashes the machine, and fsync is slow
_MEMORY = Path("/dev/shm")
_PREFIX = "holdfast-contract-"


def default_row(number: int) -> Row:
    """A row with the values that get lost most easily: nulls, empty text, quotes, line ends, letters beyond ASCII."""
    names = (None, "", 'a "quoted" name', "two\nlines", "naïve ☃ 漢字 😀", f"plain {number}")
    return {"id": number, "name": names[number % len(names)], "amount": None if number % 4 == 1 else number / 2}


def require(condition: object, message: str) -> None:
    """An assertion that `python -O` does not remove."""
    if not condition:
        raise AssertionError(message)


class NotApplicable(Exception):
    """This check has nothing to say about this sink; the report lists it as skipped, with the reason."""


@dataclass(frozen=True)
class ArmedFault:
    """A fault that a check armed: `point=mode`, and whether it happened."""

    check: str
    fault: str
    fired: bool
    #: why this point is none of this sink's; empty when it is, or when it fired
    reason: str = ""


def no_point_of(sink: TwoPhaseCommitSink, point: str) -> str:
    """Why a fault point need not fire for this sink; empty when it should."""
    if point == "offsets":
        return "a source with group offsets has this point, no sink"
    if point == "repair":
        return "only repair_is_repeated makes an endpoint drop decided work"
    if point == "commit.sink" and isinstance(sink, IdempotentSink):
        return "its tasks leave nothing to commit"
    if point in ("commit.subtask", "commit.mark") and not isinstance(sink, WriteAheadSink):
        return "its commit has no such step"
    return ""


@dataclass
class CheckContext:
    """One check's surroundings; each has its own pipelines, locations and rows, so that all can share an endpoint."""

    make_sink: Callable[[], TwoPhaseCommitSink]
    read_rows: Callable[[], Iterable[Mapping[str, Any]]]
    guarantee: str
    schema: pa.Schema = SCHEMA
    make_row: Callable[[int], Row] = default_row
    key: str = "id"
    leftovers: Callable[[], Iterable[Hashable]] | None = None
    name: str = "check"
    numbers: Iterable[int] = ()
    #: see exercise_sink
    unacceptable: Callable[[], Iterable[pa.RecordBatch]] | None = None
    changed: Callable[[], TwoPhaseCommitSink] | None = None
    drop_prepared: Callable[[], None] | None = None
    ledger: bool = False
    faults: list[ArmedFault] = field(default_factory=list)
    _baseline: set[Hashable] = field(default_factory=set)
    _folders: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers = iter(self.numbers)
        self._baseline = set(self.leftovers() if self.leftovers else ())

    @property
    def exactly_once(self) -> bool:
        """Whether readers may see nothing before its decision and nothing twice."""
        return self.guarantee == "exactly-once"

    def close(self) -> None:
        """Remove the checkpoint locations."""
        while self._folders:
            self._folders.pop().cleanup()

    @contextmanager
    def armed(self, text: str, *, died: bool = False) -> Iterator[None]:
        """Arm fault points for the length of a block, and note which of them fired; see local.armed."""
        fired: dict[str, bool] = {}
        try:
            with armed(text, died=died) as fired:
                yield
        finally:
            for part in text.split(","):
                point = part.partition("=")[0]
                happened = fired.get(point, False)
                why = "" if happened else no_point_of(self.make_sink(), point)
                self.faults.append(ArmedFault(self.name, part, happened, why))

    # -- what goes in -----------------------------------------------------------------------------------------------

    def rows(self, count: int = 6) -> list[Row]:
        """Rows nobody has sent before."""
        return [self.make_row(next(self._numbers)) for _ in range(count)]

    def partitions(self, rows: Sequence[Row], count: int = 2) -> list[list[pa.RecordBatch]]:
        """The rows dealt out to partitions, each in two record batches."""
        dealt = [rows[index::count] for index in range(count)]
        return [[self._batch(part[:1]), self._batch(part[1:])] for part in dealt]

    def batch(self, rows: Sequence[Row], partitions: int = 2, **how: Any) -> LocalBatch:
        """A micro-batch of these rows."""
        return LocalBatch(self.partitions(rows, partitions), **how)

    def _batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(list(rows), schema=self.schema)

    def query(self, pipeline: str | None = None) -> LocalQuery:
        """A pipeline with a new checkpoint location."""
        folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=_MEMORY if _MEMORY.is_dir() else None)
        self._folders.append(folder)
        return LocalQuery(folder.name, pipeline or f"{self.name}-{uuid.uuid4().hex[:8]}", self.schema)

    def start(self, query: LocalQuery, *others: TwoPhaseCommitSink) -> LocalRun:
        """A new driver with a new sink, as after a restart."""
        return query.start([self.make_sink(), *others])

    # -- what came out ----------------------------------------------------------------------------------------------

    def seen(self, rows: Iterable[Row]) -> list[Row]:
        """Those of these rows a reader sees now, as often as it sees them."""
        wanted = {row[self.key] for row in rows}
        return [dict(row) for row in self.read_rows() if row[self.key] in wanted]

    def expect(self, rows: Sequence[Row], when: str) -> None:
        """Every row is there as often as the guarantee allows, with all its values."""
        found = self.seen(rows)
        report = audit((row[self.key] for row in rows), (row[self.key] for row in found))
        fine = report.nothing_lost if self.guarantee == "at-least-once" else report.ok
        require(fine, f"{when}: {report}{_named('lost', report.lost)}{_named('doubled', report.doubled)}")
        sent = {row[self.key]: row for row in rows}
        for row in found:
            for column in self.schema.names:
                want, got = sent[row[self.key]][column], row.get(column)
                where = f"{when}: row {row[self.key]!r}, column {column!r}"
                require(want == got, f"{where}: {want!r} went in and {got!r} came out")

    def expect_nothing(self, rows: Sequence[Row], when: str) -> None:
        """None of these rows is visible; asked only of sinks that promise it."""
        found = [row[self.key] for row in self.seen(rows)] if self.exactly_once else []
        require(not found, f"{when}, a reader must see nothing of it, but sees {len(found)} rows{_named('', found)}")

    def expect_undone(self, info: Run, checkpoint_id: CheckpointId, undone: Sequence[Committable], when: str) -> None:
        """Work that was undone stays undone: asked to commit it all the same, the sink answers that it is lost."""
        if not undone or not self.exactly_once:
            return
        sink = self.make_sink()
        sink.open(info)
        try:
            outcome = sink.commit(checkpoint_id, [c.data for c in undone], PickledTasks())
        except Exception:  # noqa: BLE001  any refusal is right
            return
        finally:
            sink.close()
        outcome = outcome or Outcome.COMMITTED
        require(
            not outcome.done,
            f"{when}, its prepared work must be undone, but commit still answered {outcome.value!r} for it: either it "
            "was not undone, or commit takes missing work for committed work (answer Outcome.LOST or raise)",
        )

    def expect_clean(self, query: LocalQuery, when: str) -> None:
        """Nothing open, prepared or hidden is left."""
        log = query.storage.walk("wal")
        require(not log, f"{when}, {len(log)} files are left in the write-ahead log{_named('', log)}")
        left = [thing for thing in (self.leftovers() if self.leftovers else ()) if thing not in self._baseline]
        require(not left, f"{when}, {len(left)} prepared things are left at the endpoint{_named('', left)}")

    def settle(self, query: LocalQuery, rows: Sequence[Row]) -> None:
        """Restart with nothing new: what was delivered stays as it is, and nothing is left over."""
        run = self.start(query)
        run.deliver()
        require(not run.coordinator.pending, "after the last restart, a decided checkpoint is still not committed")
        run.close()
        self.expect(rows, "after the last restart")
        self.expect_clean(query, "after the last restart")


def _named(what: str, things: Sequence[Any]) -> str:
    if not things:
        return ""
    more = ", ..." if len(things) > _SHOWN else ""
    return f"; {what}: ".replace("; :", ":") + ", ".join(map(repr, things[:_SHOWN])) + more
