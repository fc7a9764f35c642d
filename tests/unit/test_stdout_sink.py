"""Standard output: what cannot be printed is refused before the decision, and no terminal makes printing fail."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.stdout import StdoutSink
from holdfast.errors import RowError
from tests.unit.inprocess import SCHEMA, Engine
from tests.unit.test_sqlite_after_decision import bad_text


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (bad_text(b"ab\xff"), "is not UTF-8"),
        (pa.array([[2**62]], pa.list_(pa.timestamp("us"))), "Python cannot show"),
        (pa.array([2**30], pa.int32()).cast(pa.date32()), "Python cannot show"),
    ],
)
def test_d1_a_value_that_cannot_be_printed_is_refused_in_the_task(location: str, array: Any, reason: str) -> None:
    engine = Engine(location, StdoutSink())
    with pytest.raises(RowError, match=rf"sink 'stdout': column 'v' has a value that {reason}"):
        engine.run(0, [pa.RecordBatch.from_arrays([array], ["v"])])
    assert engine.files("decisions") == engine.files("wal") == []


def test_a_terminal_without_utf8_is_shown_escapes(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    engine = Engine(location, StdoutSink())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
        engine.run(0, [pa.RecordBatch.from_pylist([{"id": 1, "name": "ä☃𝄞"}], schema=SCHEMA)])
        shown = raw.getvalue().decode("ascii")
    assert json.loads(shown) == {"id": 1, "name": "ä☃𝄞"}
    assert "\\u00e4" in shown
    assert engine.pending == []
