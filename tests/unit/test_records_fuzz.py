"""Whatever happens to the bytes of a record, reading it gives the record or RecordError with the path, never less."""

from __future__ import annotations

import hashlib
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.checkpoint import records
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.storage import LocalStorage
from holdfast.core.model import Committable, Record, RecordKind, Slot
from holdfast.errors import RecordError, StorageError

PATH = "file:///checkpoint/holdfast/decisions/3.1.json"
KINDS = (*RecordKind, "commit", "generation", "lineage")

texts = st.text(max_size=20)
numbers = st.integers(min_value=-(2**63), max_value=2**63)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
committables = st.builds(
    Committable,
    sink=texts,
    subtask=st.integers(0, 10_000),
    data=st.dictionaries(texts, values, max_size=4),
    rows=st.integers(0, 2**63),
    bytes=st.integers(0, 2**63),
    digest=st.none() | st.text(string.hexdigits, max_size=16),
)
decision_records = st.builds(
    Record,
    slot=st.just(Slot(3, 1)),
    kind=st.sampled_from(RecordKind),
    checkpoint_id=st.none() | st.integers(0, 2**63),
    sinks=st.lists(texts, max_size=3).map(tuple),
    committables=st.lists(committables, max_size=3).map(tuple),
    timestamp=st.integers(0, 2**63),
    state=st.dictionaries(texts, values, max_size=3),
)


def as_bytes(record: Record) -> bytes:
    return records.encode(record.kind, records.new_nonce(), records.record_to_body(record))


@st.composite
def damaged_records(draw: st.DrawFn) -> bytes:
    """A valid record with one thing wrong: cut, a bit flipped, a piece lost, put twice, or taken from another."""
    data = as_bytes(draw(decision_records))
    other = as_bytes(draw(decision_records))
    here = draw(st.integers(0, len(data) - 1))
    there = draw(st.integers(0, len(data)))
    first, last = min(here, there), max(here, there)
    how = draw(st.sampled_from(["cut", "flip", "drop", "double", "splice", "blank", "append"]))
    if how == "cut":
        return data[:here]
    if how == "flip":
        return data[:here] + bytes([data[here] ^ (1 << draw(st.integers(0, 7)))]) + data[here + 1 :]
    if how == "drop":
        return data[:first] + data[last + 1 :]
    if how == "double":
        return data[:last] + data[first:]
    if how == "splice":
        return data[:here] + other[here:]
    if how == "blank":
        return data[:first] + b"\0" * (last - first) + data[last:]
    return data + draw(st.binary(min_size=1, max_size=20))


def read(data: bytes) -> Record | None:
    """The record, or None for a RecordError that names the path; anything else fails the test."""
    try:
        return records.record_from_bytes(Slot(3, 1), data, PATH)
    except RecordError as error:
        assert PATH in str(error)
        return None


@given(record=decision_records)
def test_a_record_comes_back_as_it_was_written(record: Record) -> None:
    assert read(as_bytes(record)) == record


@given(kind=st.sampled_from(KINDS), nonce=st.text(string.hexdigits, max_size=32), body=st.dictionaries(texts, values))
def test_any_plain_body_comes_back_as_it_was_written(kind: str, nonce: str, body: dict[str, Any]) -> None:
    body = {f"body-{key}": value for key, value in body.items()}
    found = records.decode(records.encode(kind, nonce, body), PATH, kind)
    assert found == {**body, "version": records.VERSION, "kind": kind, "nonce": nonce}


@given(record=decision_records)
def test_two_writers_of_the_same_record_can_tell_theirs(record: Record) -> None:
    assert as_bytes(record) != as_bytes(record)


@given(data=st.binary(max_size=300))
def test_random_bytes_are_damage(data: bytes) -> None:
    assert read(data) is None
    for kind in KINDS:
        with pytest.raises(RecordError, match=PATH):
            records.decode(data, PATH, kind)


@given(data=damaged_records())
@settings(max_examples=250)
def test_a_damaged_record_is_never_taken_for_a_whole_one(data: bytes) -> None:
    found = read(data)
    # Splicing at the first byte, doubling nothing or blanking nothing leaves a whole record, which must read as such.
    assert found is None or as_bytes(found)[-20:] == data[-20:]


@given(kind=st.sampled_from(KINDS), wanted=st.sampled_from(KINDS))
def test_a_record_of_another_kind_is_damage(kind: str, wanted: str) -> None:
    data = records.encode(kind, records.new_nonce(), {})
    if kind == wanted:
        assert records.decode(data, PATH, wanted)["kind"] == kind
    else:
        with pytest.raises(RecordError, match=PATH):
            records.decode(data, PATH, wanted)


@given(body=st.dictionaries(st.sampled_from(["checkpoint_id", "sinks", "committables", "timestamp"]), values))
def test_a_record_that_lacks_fields_is_damage(body: dict[str, Any]) -> None:
    assert read(records.encode("decision", records.new_nonce(), body)) is None


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), b"bytes", {1, 2}, object()], ids=["nan", "inf", "bytes", "set", "object"]
)
def test_what_json_cannot_hold_is_refused_before_it_is_written(value: object) -> None:
    with pytest.raises(StorageError, match="JSON"):
        records.encode("decision", records.new_nonce(), {"state": value})


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with one decision and one commit record."""
    root = tmp_path_factory.mktemp("log")
    log = CheckpointLog(LocalStorage(str(root)), "pipeline")
    log.start()
    log.decide(0, ["sink"], [Committable("sink", 0, {"id": 1})], timestamp=0, state={})
    log.record_commit(0, "sink", {})
    return root


@pytest.mark.parametrize("name", ["decisions/0.0.json", "commits/0.sink.json", "lineage.json"])
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_log_with_a_damaged_file_is_refused_with_its_path(location: Path, name: str, data: st.DataObject) -> None:
    path = location / name
    whole = path.read_bytes()
    here = data.draw(st.integers(0, len(whole) - 1))
    how = data.draw(st.sampled_from(["cut", "flip", "random"]))
    flipped = whole[:here] + bytes([whole[here] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[here + 1 :]
    path.write_bytes({"cut": whole[:here], "flip": flipped, "random": data.draw(st.binary(max_size=200))}[how])
    try:
        log = CheckpointLog(LocalStorage(str(location)), "pipeline")
        with pytest.raises(RecordError, match=name):
            log.start()
    finally:
        path.write_bytes(whole)
    assert len(list((location / "generations").iterdir())) == 1, "a damaged log is refused before it is claimed"


@pytest.mark.parametrize(
    "raw",
    [b"\xff\xfe", b"{", b"[" * 100_000, b"[]", b'{"kind":"lineage","version":1}'],
)
def test_a_right_checksum_over_nonsense_is_damage_too(raw: bytes) -> None:
    data = b'{"sha256":"' + hashlib.sha256(raw).hexdigest().encode() + b'","record":' + raw + b"}\n"
    with pytest.raises(RecordError, match=PATH):
        records.decode_with(("pipeline", "lineage"), data, PATH, "lineage")
