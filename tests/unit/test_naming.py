"""Names parse back exactly (rule 2), whatever pipelines and sinks are called."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.core.naming import (
    MAX_ESCAPED,
    MAX_NAME,
    Task,
    check_name,
    escape,
    job_id,
    operator_id,
    parse_job_id,
    parse_token,
    unescape,
)
from holdfast.errors import ConfigError
from holdfast.sinks.two_phase import TwoPhaseCommitSink


def _allowed(text: str) -> bool:
    fits = 1 <= len(text.encode()) <= MAX_NAME and len(escape(text)) <= MAX_ESCAPED
    return fits and text.isprintable() and text == text.strip()


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(_allowed)
tricky = st.sampled_from(["-", "a-b", "a.2db", ".", "..", "hf1-x", "ä", "日本", "a/b", "a'b\"c", "%41", "0", "A", "a"])
any_name = names | tricky
numbers = st.integers(min_value=0, max_value=2**63)
lineages = st.text("0123456789abcdef", min_size=32, max_size=32)
tasks = st.builds(Task, any_name, any_name, lineages, numbers, numbers, numbers, numbers)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_escape_round_trips_and_is_safe_everywhere(text: str) -> None:
    """Letters, digits, underscore and dot: file names, SQL, Kafka ids and URLs take them; the dash is left to join."""
    escaped = escape(text)
    assert unescape(escaped) == text
    assert re.fullmatch(r"[A-Za-z0-9_.]*", escaped)


@given(st.text())
def test_unescape_takes_only_what_escape_makes(text: str) -> None:
    try:
        result = unescape(text)
    except ValueError:
        return
    assert escape(result) == text


@given(any_name, any_name)
def test_two_names_never_share_an_escaped_form(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) is (one == other)


@given(tasks)
def test_a_token_parses_back_to_its_task(task: Task) -> None:
    assert parse_token(task.token) == task


@given(tasks, tasks)
def test_two_different_tasks_never_share_a_token(one: Task, other: Task) -> None:
    assert (one.token == other.token) is (one == other)


@given(tasks, st.integers(min_value=0, max_value=6), st.integers(min_value=1, max_value=9))
def test_a_change_of_any_part_changes_the_token(task: Task, part: int, by: int) -> None:
    field = ("pipeline", "sink", "lineage", "generation", "checkpoint_id", "subtask", "attempt")[part]
    value = getattr(task, field)
    changed = replace(task, **{field: value + by if isinstance(value, int) else value[::-1] + "x" * by})
    assume(changed != task)
    assert changed.token != task.token


def test_time_and_place_are_not_part_of_the_token() -> None:
    task = Task("p", "s", "0" * 32, 1, 2, 3, 4, timestamp=5, location="/a")
    assert task.token == replace(task, timestamp=6, location="/b").token == f"hf1-p-s-{'0' * 32}-1-2-3-4"


@given(st.text() | st.text("hf1-.0abcdef", max_size=80))
def test_parse_token_answers_none_for_any_other_text_and_never_raises(text: str) -> None:
    task = parse_token(text)
    assert task is None or task.token == text


@given(tasks, st.data())
def test_a_token_with_one_character_changed_is_another_task_or_none(task: Task, data: st.DataObject) -> None:
    token = task.token
    at = data.draw(st.integers(0, len(token) - 1))
    changed = token[:at] + data.draw(st.characters()) + token[at + 1 :]
    assume(changed != token)
    assert parse_token(changed) != task


@given(any_name, lineages)
def test_a_job_id_parses_back(pipeline: str, lineage: str) -> None:
    assert parse_job_id(job_id(pipeline, lineage)) == (pipeline, lineage)


@given(st.text())
def test_parse_job_id_answers_none_for_any_other_text(text: str) -> None:
    parsed = parse_job_id(text)
    assert parsed is None or job_id(*parsed) == text


def test_c5_the_operator_id_is_the_sinks_name_made_safe() -> None:
    assert operator_id("orders to Kafka") == "orders.20to.20Kafka"


@given(any_name)
def test_any_printable_name_is_allowed(name: str) -> None:
    assert check_name("name", name) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (5, "name must be a string, not int"),
        ("", "1 to 100 bytes"),
        ("x" * 101, "1 to 100 bytes, and 'x+' has 101"),
        ("ä" * 51, "has 102"),
        (" x", "no blanks at its ends"),
        ("x\n", "printable characters only"),
        ("a\0b", "printable characters only"),
        ("\ud800", "not valid Unicode"),
        ("日" * 25, "too long for a file name"),
    ],
)
def test_a_bad_name_is_refused_with_the_reason(name: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_name("name", name)


def test_a_sink_class_is_named_after_itself_and_a_bad_name_is_refused_when_it_is_made() -> None:
    class Renamed(TwoPhaseCommitSink):
        """Abstract still; the name is all that matters."""

    assert Renamed.name == "Renamed"
    with pytest.raises(ConfigError, match="the name of sink class Bad must have 1 to 100 bytes"):
        type("Bad", (TwoPhaseCommitSink,), {"name": ""})
