"""The real kernel under a deterministic scheduler (tests/unit/model): every deviation from the default, at every point.

World: two drivers on one location and a clean restart at the end (up to three), a two-phase sink with transactions that
expire, a write-ahead sink that may lag, two checkpoints (three where records are pruned) of two subtasks, a replay that
splits rows in another way each time, operator state and state records, an operator, take-over, a sink that overlaps.

Bounds here: most worlds of `SOUND` are executed once for every single deviation at every point (a switch to another
actor, a crash, a lost answer, a failed call, time passing, a driver that dies before its task), others for some kinds
of them, or for pairs of some kinds at some points; docs/how-it-works.md has them all, with their executions.
`python -m tests.unit.model` goes through all pairs, which takes hours; `make walk` makes random executions of up to six
deviations for an hour.

With one of the rules of design.md off, the search finds the violation that is named beside it.
"""

from __future__ import annotations

import pytest

from tests.unit.model import page, rules
from tests.unit.model.explore import explore
from tests.unit.model.scenarios import MISSED, SOUND, Missed


@pytest.mark.parametrize("scenario", SOUND)
def test_with_all_rules_on_no_execution_breaks_anything(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = explore(SOUND[scenario].setup, rules.ALL, SOUND[scenario].bounds)
    with capsys.disabled():
        print(f"\n  {scenario}: {report}", end="")
    assert report.found is None, report
    assert report.whole and report.executions > 40, "a search that goes nowhere has checked nothing"
    told = page.counted(page.PAGE.read_text(encoding="utf-8"))[scenario]
    assert abs(report.executions - told) <= told / 5, f"docs: {told}; run `python -m tests.unit.model.page --count`"


def test_the_docs_say_what_is_explored_and_which_rule_is_missed_how() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.written(text, page.counted(text)) == text, "run `python -m tests.unit.model.page`"


@pytest.mark.parametrize("missed", MISSED, ids=lambda missed: f"{missed.rules.name} -> {missed.violation}")
def test_with_a_rule_off_its_violation_is_found(missed: Missed) -> None:
    report = explore(missed.scenario.setup, missed.rules, missed.scenario.bounds, wanted=missed.violation)
    print(report)
    assert report.found is not None, f"{report}; others: {sorted(report.violations)}"


def test_every_rule_of_the_design_is_switched_off_once() -> None:
    assert {missed.rules.name.partition(":")[0] for missed in MISSED} == {str(number) for number in range(1, 18)}
