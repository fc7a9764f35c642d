"""The table of transitions, and the page that is printed from it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint.history import INTERRUPTED
from holdfast.core.states import TRANSITIONS, Event, State, TransitionError, advance, diagram, recorded

PAGE = Path(__file__).parents[2] / "docs" / "states.md"
BEGIN, END = "<!-- diagram:begin -->\n", "<!-- diagram:end -->\n"


def test_every_state_is_reached_from_running() -> None:
    reached, frontier = {State.RUNNING}, [State.RUNNING]
    while frontier:
        state = frontier.pop()
        for (source, _), target in TRANSITIONS.items():
            if source is state and target not in reached:
                reached.add(target)
                frontier.append(target)
    assert reached == set(State)


def test_every_state_that_is_not_final_can_come_to_an_end() -> None:
    ending = {state for state in State if state.final}
    while more := {source for (source, _), target in TRANSITIONS.items() if target in ending} - ending:
        ending |= more
    assert ending == set(State)


def test_final_states_have_no_exits_and_all_others_have() -> None:
    assert {state for state in State if not state.final} == {source for source, _ in TRANSITIONS}


def test_every_event_is_used() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_nothing_that_is_decided_is_ever_aborted() -> None:
    after, frontier = set(), [State.DECIDED]
    while frontier:
        state = frontier.pop()
        after.add(state)
        frontier += [t for (s, _), t in TRANSITIONS.items() if s is state and t not in after]
    assert State.ABORTED not in after
    assert State.RUNNING not in after


def test_only_a_decision_leads_to_decided_from_what_is_not() -> None:
    promised = {State.DECIDED, State.LAGGING}
    into = {event for (source, event), target in TRANSITIONS.items() if target in promised and source not in promised}
    assert into == {Event.DECIDE}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_advance_follows_the_table_and_refuses_everything_else(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert advance(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(TransitionError, match=f"{state}.*please report"):
            advance(state, event)


SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
#: who may name a state without a move or a comparison: where a batch begins, and readers that only show one
NAMED = {
    ("checkpoint/micro_batch.py", "_write", "RUNNING"),
    ("checkpoint/history.py", "_under_way", "RUNNING"),
    ("telemetry/newly.py", "_as_aborted", "ABORTED"),
    ("telemetry/samples.py", "_ended", "ABORTED"),
}


def named_states(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(function, state) of each `State.X` that is neither what `advance` is given nor compared."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    fine = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            fine |= {id(inner) for inner in ast.walk(node)}
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "advance":
            fine |= {id(inner) for inner in node.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in State.__members__ and id(node) not in fine:
            named = node.value
            if (named.id if isinstance(named, ast.Name) else getattr(named, "attr", "")) == "State":
                inside = [f.name for f in functions if f.lineno <= node.lineno <= (f.end_lineno or f.lineno)]
                yield inside[-1] if inside else "", node.attr


def test_no_other_code_sets_a_state() -> None:
    found = {
        (file.relative_to(SOURCE).as_posix(), *where)
        for file in SOURCE.rglob("*.py")
        if file != SOURCE / "core" / "states.py"
        for where in named_states(ast.parse(file.read_text()))
    }
    assert found == NAMED


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f():\n    return {'status': State.LAGGING}", [("f", "LAGGING")]),
        ("state = states.State.COMPLETE", [("", "COMPLETE")]),
        ("advance(State.DECIDED, Event.LAG)\nif x == State.COMPLETE: pass", []),
        ("advance(state or str(State.DECIDED), Event.LAG)", [("", "DECIDED")]),
    ],
)
def test_a_state_that_is_set_is_seen(text: str, found: list[tuple[str, str]]) -> None:
    assert list(named_states(ast.parse(text))) == found


def test_records_alone_say_decided_or_complete_whatever_it_was_before() -> None:
    assert recorded(committed=False) is State.DECIDED and recorded(committed=True) is State.COMPLETE
    assert TRANSITIONS[State.LAGGING, Event.RESTART] is recorded(committed=False)


def test_the_page_says_that_interrupted_is_no_state() -> None:
    assert f"`{INTERRUPTED}`" in PAGE.read_text() and INTERRUPTED not in set(State)


def test_the_diagram_has_a_line_for_each_transition() -> None:
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert sum(": " in line for line in lines) == len(TRANSITIONS)
    assert sum(line.endswith("--> [*]") for line in lines) == sum(state.final for state in State)


def test_the_page_shows_the_diagram_of_the_table() -> None:
    text = PAGE.read_text()
    shown = text.partition(BEGIN)[2].partition(END)[0]
    assert shown == f"```mermaid\n{diagram()}```\n", "print holdfast.core.states.diagram() between the markers"


@pytest.mark.parametrize("state", State)
def test_the_page_explains_each_state(state: State) -> None:
    assert f"\n| {state} | " in PAGE.read_text()
