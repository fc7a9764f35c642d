"""A sink that gets no row of a checkpoint costs nothing there: no transaction, no file, no round trip (R6)."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.ports import Run
from holdfast.sinks import wal
from holdfast.sinks.fan import fanned
from holdfast.sinks.selection import Selection
from tests.unit.inprocess import Endpoint, Engine, PreparingSink

ROWS = pa.RecordBatch.from_pydict({"id": pa.array([1, 2, 3]), "none": pa.array([False, False, False])})
NOTHING = Selection(((0, "id"),), where=1)
DSN = "postgresql://localhost:1/none"
SINKS: dict[str, Callable[[Path], Any]] = {
    "sqlite": lambda folder: hf.SqliteSink(folder / "out" / "a.db", "t"),
    "sqlite by columns": lambda folder: fanned(hf.SqliteSink(folder / "out" / "a.db", "t_{id}")),
    "files": lambda folder: hf.FileSink(folder / "out" / "files"),
    "postgres ledger": lambda folder: hf.PostgresSink(DSN, "t"),
    "postgres two-phase": lambda folder: hf.PostgresSink(DSN, "t", mode="two-phase"),
    "postgres upsert": lambda folder: hf.PostgresSink(DSN, "t", mode="upsert", key=["id"]),
    "kafka two-phase": lambda folder: hf.KafkaSink("localhost:1", "t"),
    "kafka write-ahead": lambda folder: hf.KafkaSink("localhost:1", "t", mode="write-ahead"),
    "cassandra": lambda folder: hf.CassandraSink(["localhost"], "k", "t"),
    "stdout": lambda folder: hf.StdoutSink(),
}
REMOTE = ("postgres", "kafka", "cassandra")


def on_disk(folder: Path) -> dict[str, tuple[int, int]]:
    found = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


@pytest.mark.contract("R6")
@pytest.mark.parametrize("kind", SINKS)
def test_a_checkpoint_without_rows_of_a_sink_does_not_touch_its_endpoint(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, end = SINKS[kind](tmp_path), Endpoint()
    remote = kind.startswith(REMOTE)
    if remote:  # a start needs the server; what comes after it must not

        def opened(self: Any, run: Run) -> None:
            self._run = run
            self._delivered = wal.Delivered()

        monkeypatch.setattr(type(sink), "open", opened)
        monkeypatch.setattr(type(sink), "close", lambda self: None)
        monkeypatch.setattr(type(sink), "recover", lambda self, *arguments: None)
    schema = {sink.name: pa.schema([("id", pa.int64())])}
    engine = Engine(tmp_path / "ck", sink, PreparingSink(end, "other"), schema=schema)
    selections = {sink.name: NOTHING, "other": Selection(((0, "id"),))}
    engine.run(0, [ROWS], selections=selections)
    engine.settle()

    def touched(*arguments: Any) -> Any:
        raise AssertionError("the endpoint was asked")

    for method in ("begin", "write", "pre_commit", "abort", "validate", "still_prepared", "commit", "recover"):
        monkeypatch.setattr(sink, method, touched)
    monkeypatch.setattr(socket.socket, "connect", touched)
    monkeypatch.setattr(sys.stdout, "write", touched)
    before = on_disk(tmp_path / "out")
    for number in (1, 2):
        engine.run(number, [ROWS], selections=selections)
        engine.settle()
    monkeypatch.undo()
    assert on_disk(tmp_path / "out") == before
    assert len(end.rows) == 9
    decided = engine.log.facts.decided[2]
    assert decided.of(sink.name) == () and decided.of("other")
    assert not [name for name in engine.files("wal") if sink.name in name]


def test_it_is_swept_again_when_the_time_has_come_or_rows_came(tmp_path: Path) -> None:
    end, other = Endpoint(), Endpoint()
    engine = Engine(tmp_path, PreparingSink(end, "some"), PreparingSink(other, "other"))
    selections = {"some": NOTHING, "other": Selection(((0, "id"),))}
    engine.run(0, [ROWS], selections=selections)
    swept = len(end.called("recover"))
    engine.run(1, [ROWS], selections=selections)
    assert len(end.called("recover")) == swept
    assert len(other.called("recover")) > swept
    engine.now += 60
    engine.run(2, [ROWS], selections=selections)
    assert len(end.called("recover")) == swept + 1
    engine.run(3, [ROWS], selections={})
    engine.run(4, [ROWS], selections=selections)
    assert len(end.called("recover")) == swept + 2, "after a checkpoint with its rows"
