"""Endpoints that were restored from an older copy (rule 15, D5)."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.log import ACCEPT_RESTORED
from holdfast.core.model import RecordKind
from holdfast.errors import RestoredEndpointError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink
from tests.unit.ledgers import Ledger, LedgerSink


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def engine(location: str, endpoint: Endpoint, ledger: Ledger) -> Engine:
    return Engine(location, LedgerSink(endpoint, ledger))


def restored(engine: Engine, ledger: Ledger, upto: int = 1, last: int = 3) -> None:
    """Checkpoints 0 to `last` are committed; then the endpoint is one that knows only those up to `upto`."""
    copy = ledger.copy()
    for number in range(last + 1):
        engine.run(number, [number])
        copy = ledger.copy() if number <= upto else copy
    ledger.marks = copy.marks


def accept(engine: Engine, through: int) -> None:
    """What `holdfast resolve --accept-restored` records."""
    known = engine.log.facts.decided[through]
    order = {"ledger": {"how": ACCEPT_RESTORED, "through": through}}
    engine.log.decide(
        through, known.sinks, (), timestamp=known.timestamp, state={}, kind=RecordKind.REPAIR, resolution=order
    )


@pytest.mark.parametrize(("upto", "knows", "missing"), [(1, "up to checkpoint 1", "2 to 3"), (-1, "none", "0 to 3")])
def test_d5_an_endpoint_that_lacks_committed_checkpoints_is_refused_with_their_numbers(
    engine: Engine, ledger: Ledger, endpoint: Endpoint, upto: int, knows: str, missing: str
) -> None:
    restored(engine, ledger, upto)
    endpoint.calls.clear()
    with pytest.raises(RestoredEndpointError, match=f"{knows}; but checkpoints {missing} were committed") as caught:
        engine.restart()
    assert caught.value.behind == (upto + 1, 3)
    assert caught.value.action == "operator"
    assert engine.waits == [], "trying again would not help"
    assert [call[0] for call in endpoint.calls] == ["open"], "nothing is swept or committed there"


def test_an_endpoint_that_knows_all_of_them_is_not_refused(engine: Engine, ledger: Ledger, endpoint: Endpoint) -> None:
    restored(engine, ledger, upto=3)
    engine.restart()
    engine.run(4, [4])
    assert endpoint.rows == [0, 1, 2, 3, 4]


def test_checkpoints_without_rows_are_not_expected_in_a_ledger(
    engine: Engine, ledger: Ledger, endpoint: Endpoint
) -> None:
    engine.run(0, [0])
    engine.run(1, [])
    assert ledger.marks == {engine.log.lineage: 0}
    engine.restart()
    engine.run(2, [2])
    assert endpoint.rows == [0, 2]


def test_what_is_decided_and_not_committed_is_not_expected_and_comes_first(
    engine: Engine, ledger: Ledger, endpoint: Endpoint
) -> None:
    engine.run(0, [0])
    endpoint.fail("commit", *[ConnectionError("down")] * 3)
    with pytest.raises(Exception, match="checkpoint 1 is decided"):
        engine.run(1, [1])
    engine.restart()
    assert endpoint.rows == [0, 1]


def test_a_sink_is_judged_by_its_own_commits(location: str, endpoint: Endpoint, ledger: Ledger) -> None:
    """One that came later has no ledger for what was before it."""
    engine = Engine(location, PreparingSink(Endpoint(), "other"))
    engine.run(0, [0])
    engine.restart(PreparingSink(Endpoint(), "other"), LedgerSink(endpoint, ledger))
    engine.run(1, [1])
    engine.restart()
    assert endpoint.rows == [1]


def test_after_a_take_over_it_goes_on(engine: Engine, ledger: Ledger, endpoint: Endpoint) -> None:
    """The old expectation belongs to the old lineage; the new one counts from here."""
    restored(engine, ledger)
    old = engine.log.lineage
    engine.restart(take_over=True)
    assert engine.log.lineage != old
    engine.run(4, [4])
    assert ledger.marks == {engine.log.lineage: 4}
    engine.restart()
    engine.run(5, [5])
    older = ledger.copy()
    engine.run(6, [6])
    ledger.marks = older.marks
    with pytest.raises(RestoredEndpointError, match="checkpoints 6 to 6 were committed"):
        engine.restart()


def test_after_an_operator_accepted_it_the_pipeline_goes_on(engine: Engine, ledger: Ledger, endpoint: Endpoint) -> None:
    restored(engine, ledger)
    with pytest.raises(RestoredEndpointError):
        engine.restart()
    accept(engine, 3)
    engine.restart()
    engine.run(4, [4])
    engine.restart()
    engine.run(5, [5])
    assert endpoint.rows == [0, 1, 2, 3, 4, 5]
    assert engine.pending == []


def test_what_was_accepted_holds_no_longer_than_for_what_it_names(engine: Engine, ledger: Ledger) -> None:
    restored(engine, ledger)
    accept(engine, 3)
    engine.restart()
    older = ledger.copy()
    engine.run(4, [4])
    ledger.marks = older.marks
    with pytest.raises(RestoredEndpointError, match="checkpoints 2 to 4 were committed"):
        engine.restart()


def test_s2_at_least_once_goes_on_with_a_restored_endpoint(engine: Engine, ledger: Ledger, endpoint: Endpoint) -> None:
    restored(engine, ledger)
    engine.restart(delivery="at-least-once")
    engine.run(4, [4])
    assert endpoint.rows == [0, 1, 2, 3, 4]
