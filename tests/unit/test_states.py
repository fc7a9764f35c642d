"""The table of transitions, and the page that is printed from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.states import TRANSITIONS, Event, State, TransitionError, advance, diagram

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
