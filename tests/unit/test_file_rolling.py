"""When waiting rows become a file: a pure decision, tried on every shape of backlog (F3)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.files.rolling import FAN_IN, Group, Part, Rolling, plan
from holdfast.connectors.files.state import Names, PartsState
from holdfast.core.units import parse_duration, parse_size
from holdfast.errors import ConfigError, RecordError

NAMES = Names("a" * 32, "files-out", 3)
NEVER = Rolling(size="1GB", age=None, inactivity=None)


def part(number: int, bucket: str = "", *, size: int = 100, at: int = 0, schema: str = "s", level: int = 0) -> Part:
    return Part(f"parts/{number}", bucket, schema, 1, size, "0", number, number, at, at, level, "parquet", "snappy")


@pytest.mark.parametrize(
    ("text", "size"), [("128MB", 128_000_000), ("64 MiB", 2**26), ("1.5kb", 1500), (17, 17), (None, None)]
)
def test_sizes_as_people_write_them(text: object, size: int | None) -> None:
    assert parse_size("size", text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900.0), ("1h", 3600.0), ("0s", 0.0), (2.5, 2.5), (timedelta(minutes=1), 60.0), (None, None)],
)
def test_durations_as_people_write_them(text: object, seconds: float | None) -> None:
    assert parse_duration("age", text) == seconds


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"size": "128"}, "size"),
        ({"size": "many"}, "size"),
        ({"size": 0}, "size"),
        ({"size": True}, "size"),
        ({"size": float("inf")}, "size"),
        ({"age": "-1s"}, "age"),
        ({"age": "15 parsecs"}, "age"),
        ({"inactivity": float("nan")}, "inactivity"),
        ({"size": None, "age": None, "inactivity": None}, "rolling"),
    ],
)
def test_a_wrong_limit_is_refused_by_name(options: dict[str, object], option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        Rolling(**options)  # type: ignore[arg-type]


@pytest.mark.contract("F3")
def test_size_makes_files_that_are_full_and_leaves_the_rest() -> None:
    files, waiting = plan([part(i) for i in range(7)], Rolling(size=300, age=None, inactivity=None), now=0)
    assert [[p.first for p in group.parts] for group in files] == [[0, 1, 2], [3, 4, 5]]
    assert waiting == [part(6)]


def test_size_is_corrected_by_what_the_last_file_became() -> None:
    rolling = Rolling(size=300, age=None, inactivity=None)
    files, _ = plan([part(i) for i in range(7)], rolling, now=0, ratio=0.5)
    assert [len(group.parts) for group in files] == [6]


@pytest.mark.contract("F3")
def test_age_counts_from_the_first_row_and_inactivity_from_the_last() -> None:
    parts = [part(0, at=0), part(1, at=50_000)]
    age, quiet = Rolling(None, "60s", None), Rolling(None, None, "60s")
    assert plan(parts, age, now=59.9)[0] == plan(parts, quiet, now=109.9)[0] == []
    for rolling, now in ((age, 60.0), (quiet, 110.0)):
        assert plan(parts, rolling, now=now) == ([Group(tuple(parts), hidden=False)], [])


def test_buckets_and_schemas_never_share_a_file() -> None:
    parts = [part(0, "a"), part(1, "b"), part(2, "a", schema="other"), part(3, "a")]
    files, waiting = plan(parts, NEVER, now=0, last=True)
    assert [[p.first for p in group.parts] for group in files] == [[0, 3], [1], [2]]
    assert waiting == []


PARTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("st"), st.integers(1, 400), st.integers(0, 100_000)), max_size=150
)


@given(PARTS, st.integers(1, 5000), st.floats(0, 200), st.booleans())
def test_every_part_goes_to_one_place_and_keeps_its_order(
    given_parts: list[tuple[str, str, int, int]], size: int, now: float, last: bool
) -> None:
    parts = [part(i, b, schema=s, size=n, at=at) for i, (b, s, n, at) in enumerate(given_parts)]
    files, waiting = plan(parts, Rolling(size, "100s", "50s"), now, last=last)
    for bucket in "ab":
        for schema in "st":
            mine = [p for p in parts if (p.bucket, p.schema) == (bucket, schema)]
            placed = [p for group in files for p in group.parts if (p.bucket, p.schema) == (bucket, schema)]
            for thing in waiting:
                some = thing.parts if isinstance(thing, Group) else (thing,)
                placed += [p for p in some if (p.bucket, p.schema) == (bucket, schema)]
            assert placed == mine
    assert not (last and waiting)
    assert not any(group.hidden for group in files)


@given(st.integers(1, 2000))
def test_what_must_be_remembered_stays_small(checkpoints: int) -> None:
    """Levels of FAN_IN parts each: the record grows with the logarithm of what waits."""
    state = PartsState()
    for number in range(checkpoints):
        state = state.advance([part(number)], NEVER, NAMES, now=0, done=state.next - 1, checkpoint=number)
        assert len(state.waiting) <= 4 * FAN_IN
        assert sum(p.rows for p in state.waiting) == number + 1
    assert [p.first for p in state.waiting] == sorted(p.first for p in state.waiting)
    done = state.advance((), NEVER, NAMES, now=0, done=state.next - 1, last=True)
    assert done.waiting == ()
    assert done.rolls[-1].rows == checkpoints


def test_names_are_of_lineage_sink_and_number_and_a_hidden_one_of_the_generation() -> None:
    parts = tuple(part(i, "country=DE") for i in (4, 7))
    name = NAMES.of(Group(parts, hidden=False), 12)
    assert name.startswith(f"country=DE/4-7-12-{'a' * 32}-")
    assert name.endswith(".parquet")
    other = Names("a" * 32, "files-copy", 3)
    assert other.of(Group(parts, hidden=False), 12) != name
    assert NAMES.of(Group(parts, hidden=True), 12) == f"parts/{'a' * 32}/3-merged-12.arrow"
    assert not NAMES.of(Group((part(1),), hidden=False), 0).startswith("/")


@given(PARTS)
def test_a_state_comes_back_from_its_record_as_it_was(given_parts: list[tuple[str, str, int, int]]) -> None:
    parts = [part(i, b, schema=s, size=n, at=at) for i, (b, s, n, at) in enumerate(given_parts)]
    state = PartsState().advance(parts, Rolling(1000, "60s", None), NAMES, now=90, done=-1, checkpoint=5)
    data = state.to_json({"path": "/x", "format": "csv", "compression": "none"})
    assert PartsState.from_json(data, "here") == state


@pytest.mark.parametrize("data", [{}, {"kind": "other"}, {"kind": "holdfast.files", "version": 99}, 7])
def test_the_state_of_another_sink_is_refused(data: object) -> None:
    with pytest.raises(RecordError, match="sink 'x' was written by another sink or by a newer holdfast"):
        PartsState.from_json(data, "sink 'x'")
