"""Every error holdfast raises on purpose: what it names, what it tells to do, and that doing it loses nothing."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import errors
from holdfast.checkpoint.storage import open_storage
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.committers.sql import SqlCheckpointCommitter
from holdfast.connectors.sqlite import SqliteSink
from holdfast.core.model import Outcome
from holdfast.testing import audit, faults
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink, damage
from tests.unit.ledgers import Ledger, LedgerSink

#: errors that need a server to happen, and where they are shown
ELSEWHERE = {
    errors.RefusedError: "tests/integration/test_checks.py",
    errors.SourceError: "tests/integration/test_kafka_source.py",
    errors.SavepointError: "tests/unit/test_savepoint.py",
}
#: never raised itself: the common part of its three subclasses
ABSTRACT = {errors.LineageError}
#: error -> the tests that show it
SHOWN: dict[type[errors.HoldfastError], list[str]] = {}
Test = Callable[..., None]


def shows(error: type[errors.HoldfastError]) -> Callable[[Test], Test]:
    def keep(test: Test) -> Test:
        SHOWN.setdefault(error, []).append(test.__name__)
        return test

    return keep


def sending(endpoint: Endpoint, location: str, **options: Any) -> SendingSink:
    return SendingSink(endpoint, FileCheckpointCommitter(f"{location}-marks"), **options)


@pytest.fixture
def engine(location: str, endpoint: Endpoint) -> Engine:
    return Engine(location, PreparingSink(endpoint))


def all_errors() -> list[type[errors.HoldfastError]]:
    found = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    return [value for value in found if issubclass(value, errors.HoldfastError)]


@shows(errors.HoldfastError)
def test_holdfast_error_is_the_root_and_is_raised_for_misuse(tmp_path: Path) -> None:
    committer = SqlCheckpointCommitter(f"sqlite:///{tmp_path}/marks.db")
    with pytest.raises(errors.HoldfastError, match="SqlCheckpointCommitter is not open: call open") as caught:
        committer.is_checkpoint_committed(0, 0)
    assert type(caught.value) is errors.HoldfastError


@shows(errors.ConfigError)
def test_config_error_names_the_option_and_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="mode must be one of ledger, upsert, append, not 'merge'") as caught:
        SqliteSink(str(tmp_path / "f"), "t", mode="merge")
    assert isinstance(caught.value, ValueError)
    SqliteSink(str(tmp_path / "f"), "t", mode="ledger")


@shows(errors.MissingExtraError)
def test_missing_extra_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    # None is how Python remembers a module that cannot be imported; fsspec has a memory of its own
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(importlib.import_module("fsspec.registry")._registry, "s3", raising=False)
    monkeypatch.setenv("AWS_REGION", "a new client, not one of another test")
    with pytest.raises(errors.MissingExtraError, match=r"'s3://b/ck' needs more.*pip install 'holdfast\[s3\]'"):
        open_storage("s3://b/ck")


@shows(errors.StorageError)
def test_storage_error_names_the_place(location: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that cannot be written is no mark: the checkpoint stays pending and is delivered later."""
    engine = Engine(location, sending(endpoint, location))
    (sink,) = engine.sinks
    raised: list[errors.StorageError] = []

    def held(*_: Any) -> None:
        raised.append(errors.StorageError("held"))
        raise raised[-1]

    with monkeypatch.context() as patch:
        patch.setattr(sink.committer, "is_checkpoint_committed", held)
        engine.run(0, [1])
    assert raised
    assert engine.pending == [0]
    engine.tick()
    assert audit([1], endpoint.rows).ok
    with pytest.raises(errors.StorageError, match=r"decision record cannot be written as JSON.*must be made of"):
        engine.log.decide(9, [], [], timestamp=0, state={"s": object()})


@shows(errors.RecordError)
def test_record_error_names_the_file_and_its_copy_brings_everything_back(engine: Engine, endpoint: Endpoint) -> None:
    engine.run(0, [1])
    path = Path(engine.location, "decisions/0.0.json")
    good = damage(path, "truncated")
    with pytest.raises(errors.RecordError, match=f"{path} is damaged.*Restore this file from a copy"):
        engine.restart()
    path.write_bytes(good)
    engine.restart()
    engine.run(1, [2])
    assert audit([1, 2], endpoint.rows).ok


@shows(errors.UnsafeStorageError)
def test_unsafe_storage_error_names_the_place_and_a_safe_one(
    location: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", no_links)
        with pytest.raises(errors.UnsafeStorageError, match=f"{location}.*local disk or an object store"):
            Engine(location, PreparingSink(endpoint))
    assert endpoint.calls == []
    Engine(location, PreparingSink(endpoint)).run(0, [1])
    assert audit([1], endpoint.rows).ok


@shows(errors.FencedError)
def test_fenced_error_names_the_other_driver_and_stopping_one_is_enough(engine: Engine, endpoint: Endpoint) -> None:
    engine.run(0, [1])
    zombie = copy.copy(engine)
    engine.restart()
    with pytest.raises(errors.FencedError, match=f"process {os.getpid()} on .*Stop one of the two"):
        zombie.run(1, [2])
    engine.run(1, [2])
    assert audit([1, 2], endpoint.rows).ok


@shows(errors.CheckpointInUseError)
def test_checkpoint_in_use_error_names_the_location_or_the_sink(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = importlib.import_module("holdfast.spark.running")
    monkeypatch.setattr(live, "_live", {})
    sink = PreparingSink(endpoint)
    with live.reserve("/data/ck", [sink]):
        with pytest.raises(errors.CheckpointInUseError, match=r"/data/ck is used by a query.*stop it first, or give"):
            live.reserve("/data/ck", []).__enter__()
        with pytest.raises(errors.CheckpointInUseError, match=r"'prepared' belongs to the running.*make a new sink"):
            live.reserve("/data/other", [sink]).__enter__()
        with live.reserve("/data/other", [PreparingSink(endpoint)]):
            pass


@shows(errors.ForeignLineageError)
def test_foreign_lineage_error_names_the_ledger_and_a_new_name_is_a_way_out(location: str, tmp_path: Path) -> None:
    endpoint = Endpoint()
    Engine(location, sending(endpoint, location)).run(0, [1])
    other = str(tmp_path / "other")
    with pytest.raises(errors.ForeignLineageError, match=r"committer .*of sink 'sending'.*new name, or pass take_over"):
        Engine(other, sending(endpoint, location))
    Engine(str(tmp_path / "third"), sending(endpoint, location), pipeline="bills").run(0, [2])
    assert audit([1, 2], endpoint.rows).ok


@shows(errors.StaleCheckpointError)
def test_stale_checkpoint_error_names_both_and_the_whole_copy_is_the_way_out(
    engine: Engine, endpoint: Endpoint, tmp_path: Path
) -> None:
    engine.run(0, [1])
    shutil.copytree(engine.location, tmp_path / "old")
    engine.run(1, [2])
    shutil.move(engine.location, tmp_path / "right")
    shutil.move(tmp_path / "old", engine.location)
    with pytest.raises(errors.StaleCheckpointError, match=f"up to 1, but the log in {engine.location} ends at 0"):
        engine.restart()
    shutil.rmtree(engine.location)
    shutil.move(tmp_path / "right", engine.location)
    engine.restart()
    engine.run(2, [3])
    assert audit([1, 2, 3], endpoint.rows).ok


@shows(errors.CommitError)
def test_commit_error_names_checkpoint_and_sink_and_the_restart_commits(engine: Engine, endpoint: Endpoint) -> None:
    endpoint.fail("commit", *[ConnectionError("refused")] * 3)
    with pytest.raises(errors.CommitError, match=r"checkpoint 0 .*'prepared'.*refused.*start the query"):
        engine.run(0, [1, 2])
    engine.restart()
    engine.run(0, [1, 2])
    assert audit([1, 2], endpoint.rows).ok


@shows(errors.LostError)
def test_lost_error_names_the_rows_and_keeps_the_decision(engine: Engine, endpoint: Endpoint) -> None:
    """What is lost at the endpoint cannot be brought back here; what can be promised is that nobody forgets it."""
    endpoint.fail("commit", Outcome.LOST)
    with pytest.raises(errors.LostError, match=r"'prepared'.*checkpoint 0 is gone \(2 rows.*docs/operations") as caught:
        engine.run(0, [1, 2])
    assert engine.location.removesuffix("/holdfast") in str(caught.value)
    assert isinstance(caught.value, errors.CommitError)
    engine.restart()
    assert audit([1, 2], endpoint.rows).ok, "an endpoint that has it after all commits it"


@shows(errors.BacklogFullError)
def test_backlog_full_error_names_the_limit_and_a_larger_one_is_a_way_out(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, sending(endpoint, location, max_pending=1))
    endpoint.down = ConnectionError("down")
    engine.run(0, [1])
    with pytest.raises(errors.BacklogFullError, match=f"'sending'.*max_pending=1.*{location}.*raise max_pending"):
        engine.run(1, [2])
    engine.restart(sending(endpoint, location, max_pending=2))
    engine.run(1, [2])
    endpoint.down = None
    engine.tick()
    assert audit([1, 2], endpoint.rows).ok


@shows(errors.RowError)
def test_row_error_names_the_key_and_order_by_is_a_way_out(location: str, tmp_path: Path) -> None:
    path = str(tmp_path / "out.db")
    engine = Engine(location, SqliteSink(path, "t", mode="upsert", key=["name"]))
    with pytest.raises(errors.RowError, match=r"'sqlite-t'.*\{'name': 'n1'\}.*order_by='column'"):
        engine.run(0, [1, 2, 1])
    engine.restart(SqliteSink(path, "t", mode="upsert", key=["name"], order_by="id"))
    engine.run(0, [1, 2, 1])
    with closing(sqlite3.connect(path)) as connection:
        assert audit([1, 2], [row[0] for row in connection.execute("SELECT id FROM t")]).ok


@shows(errors.RestoredEndpointError)
def test_restored_endpoint_error_names_the_checkpoints_and_the_newer_state_is_a_way_out(
    location: str, endpoint: Endpoint
) -> None:
    ledger = Ledger()
    engine = Engine(location, LedgerSink(endpoint, ledger))
    engine.run(0, [1])
    older = ledger.copy()
    engine.run(1, [2])
    engine.run(2, [3])
    newer, ledger.marks = ledger.marks, older.marks
    with pytest.raises(errors.RestoredEndpointError, match=r"'ledger'.*checkpoints 1 to 2 were committed") as caught:
        engine.restart()
    assert caught.value.behind == (1, 2)
    assert f"holdfast resolve {engine.location.removesuffix('/holdfast')} --sink ledger" in str(caught.value)
    ledger.marks = newer
    engine.restart()
    engine.run(3, [4])
    assert audit([1, 2, 3, 4], endpoint.rows).ok


@shows(errors.SinkError)
def test_sink_error_names_sink_and_address_and_keeps_the_clients_own_error(location: str, endpoint: Endpoint) -> None:
    class Addressed(PreparingSink):
        address = "shop.example:5432"

    engine = Engine(location, Addressed(endpoint))
    endpoint.fail("write", KeyError("a bug"))
    with pytest.raises(
        errors.SinkError, match=r"sink 'prepared' \(shop.example:5432\): write failed: Key.*a bug"
    ) as caught:
        engine.run(0, [1])
    assert isinstance(caught.value.__cause__, KeyError)
    engine.restart()
    engine.run(0, [1])
    assert audit([1], endpoint.rows).ok


@shows(errors.NotPreparedError)
def test_not_prepared_error_names_what_is_gone_and_the_next_start_runs_the_batch(
    location: str, endpoint: Endpoint
) -> None:
    class Forgetful(PreparingSink):
        def still_prepared(self, committables: Any) -> Any:
            return committables[1:]

    engine = Engine(location, Forgetful(endpoint, timeout=0.0))
    with pytest.raises(errors.NotPreparedError, match=r"'prepared' dropped 1 of 2 prepared pieces of checkpoint 0"):
        engine.run(0, [1], [2])
    assert engine.log.last_decided is None
    engine.restart(PreparingSink(endpoint))
    engine.run(0, [1], [2])
    assert audit([1, 2], endpoint.rows).ok


@shows(errors.MarkError)
def test_mark_error_stops_also_a_sink_that_may_lag_and_nothing_is_sent_again(location: str, endpoint: Endpoint) -> None:
    """D10: sent and not marked; sending it every second would double it every second."""
    engine = Engine(location, sending(endpoint, location))
    endpoint.fail("send", errors.MarkError("sent, but the mark of checkpoint 0 cannot be written: disk full"))
    with pytest.raises(errors.MarkError, match="disk full"):
        engine.run(0, [1])
    engine.tick()
    assert endpoint.called("send") == [(0,)]
    assert engine.files("lost") == ["lost/0.sending.json"]
    engine.restart()
    assert audit([1], endpoint.rows).ok


@shows(errors.UndeliveredError)
def test_undelivered_error_names_sink_checkpoints_and_rows_and_the_next_start_delivers(
    location: str, endpoint: Endpoint
) -> None:
    engine = Engine(location, sending(endpoint, location), bounded=True, drain_timeout=5.0)
    endpoint.down = ConnectionError("down")
    with pytest.raises(
        errors.UndeliveredError, match=r"'sending': checkpoint 0, 2 rows; .*down.*next start.*drain_timeo"
    ):
        engine.run(0, [1], [2])
    endpoint.down = None
    engine.restart()
    assert audit([1, 2], endpoint.rows).ok


@shows(errors.EngineError)
def test_engine_error_says_whether_the_tasks_may_run_again(engine: Engine, endpoint: Endpoint) -> None:
    troubles = [errors.EngineError("an executor is gone", again=True)]

    def task(_: int) -> None:
        if troubles:
            raise troubles.pop()

    batch = engine.run(0, [1], on_task=task)
    assert batch.writes == 2
    troubles.append(errors.EngineError("the query's own code failed"))
    with pytest.raises(errors.EngineError, match="own code"):
        engine.run(1, [2], on_task=task)
    assert audit([1], endpoint.rows).ok


@shows(errors.InjectedFault)
def test_injected_fault_names_its_point_and_disarming_it_is_enough(
    engine: Engine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_hits", type(faults._hits)())
    monkeypatch.setenv(faults.VARIABLE, "decision=error")
    with pytest.raises(errors.InjectedFault, match="fault decision: raised before the effect"):
        engine.run(0, [1])
    monkeypatch.delenv(faults.VARIABLE)
    engine.restart()
    engine.run(0, [1])
    assert audit([1], endpoint.rows).ok


@pytest.mark.parametrize("error", [error for error in all_errors() if error.action != errors.RESTART])
def test_a_permanent_error_of_a_sink_is_raised_at_once(
    engine: Engine, endpoint: Endpoint, error: type[errors.HoldfastError]
) -> None:
    """Trying again cannot help, and a sink that may lag must not hide it either."""
    endpoint.fail("commit", error("no use"))
    with pytest.raises(error, match="no use"):
        engine.run(0, [1])
    assert engine.waits == []
    lagging = Engine(engine.location + "2", sending(endpoint, engine.location))
    endpoint.fail("send", error("no use"))
    with pytest.raises(error, match="no use"):
        lagging.run(0, [1])


def test_every_error_is_shown_here_or_against_a_server() -> None:
    assert set(SHOWN) | ABSTRACT | set(ELSEWHERE) == set(all_errors())
    for error, file in ELSEWHERE.items():
        assert error.__name__ in Path(__file__, "../../..", file).resolve().read_text()


def test_the_guide_names_for_each_error_the_test_that_shows_it() -> None:
    guide = Path(__file__, "../../../docs/errors.md").resolve().read_text()
    for error in all_errors():
        shown = SHOWN.get(error, [ELSEWHERE.get(error, "the next three")])[0]
        [row] = [line for line in guide.splitlines() if line.startswith(f"| `{error.__name__}` |")]
        assert row.endswith(f" | {shown if error in ABSTRACT else f'`{shown}`'} |"), error.__name__


@pytest.mark.contract("R7")
@pytest.mark.parametrize("error", all_errors())
def test_every_error_says_what_to_do_as_data(error: type[errors.HoldfastError]) -> None:
    made = error("why")
    assert made.action in ("restart", "operator", "fix")
    assert errors.permanent(made) is (made.action != "restart")
    assert errors.__doc__ is not None
    drawn = dict(re.findall(r"(\w+)(?: \(also ValueError\))? +(restart|operator|fix) ", errors.__doc__))
    assert error is errors.HoldfastError or drawn[error.__name__] == made.action


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, str] = {}
    parents: list[str] = []
    for bars, name in re.findall(r"^([│├└─ ]*)(\w+)", errors.__doc__.split("```")[1].strip(), re.M):
        depth = len(bars) // 4
        parents[depth:] = [name]
        drawn[name] = parents[depth - 1] if depth else "Exception"
    assert drawn == {error.__name__: error.__bases__[0].__name__ for error in all_errors()}
