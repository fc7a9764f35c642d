"""Idempotent sinks and the sink that prints: what they promise, and that they promise no more."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.stdout import StdoutSink
from holdfast.core.naming import Task
from holdfast.errors import CommitError, ConfigError, SinkError
from holdfast.sinks.idempotent import IdempotentSink
from tests.unit.inprocess import Endpoint, Engine, PreparingSink


class Upserting(IdempotentSink):
    """Writes by key straight from the task."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint, self.rows = endpoint, {}

    def connect(self, task: Task) -> Any:
        self.endpoint.call("connect", task.subtask)
        return task.subtask

    def upsert(self, connection: Any, batch: pa.RecordBatch) -> None:
        self.endpoint.call("upsert", connection)
        self.rows |= {row["id"]: row["name"] for row in batch.to_pylist()}

    def disconnect(self, connection: Any) -> None:
        self.endpoint.call("disconnect", connection)


def test_i1_a_replay_leaves_the_same_rows(location: str, endpoint: Endpoint) -> None:
    sink, other = Upserting(endpoint), Endpoint()
    engine = Engine(location, sink, PreparingSink(other))
    other.fail("validate", RuntimeError("not this time"))
    with pytest.raises(SinkError, match="not this time"):
        engine.run(0, [1, 2], [3])
    assert sorted(sink.rows) == [1, 2, 3], "visible before the decision, as the docstring says"
    engine.restart()
    engine.run(0, [1, 2], [3])
    assert sorted(sink.rows) == [1, 2, 3]
    assert sorted(other.rows) == [1, 2, 3]
    assert engine.pending == []


@pytest.mark.parametrize("method", ["upsert", "disconnect", None])
def test_a_connection_is_closed_once_whatever_fails(location: str, endpoint: Endpoint, method: str | None) -> None:
    other = Endpoint()
    engine = Engine(location, Upserting(endpoint), PreparingSink(other))
    failing = endpoint if method else other
    failing.fail(method or "pre_commit", RuntimeError("failed"))
    with pytest.raises(SinkError, match="RuntimeError: failed"):
        engine.run(0, [1])
    assert endpoint.called("disconnect") == [(0,)]
    assert other.prepared == {}


def test_without_methods_of_its_own_a_sink_connects_to_nothing(location: str) -> None:
    seen: list[Any] = []

    class Plain(IdempotentSink):
        def upsert(self, connection: Any, batch: pa.RecordBatch) -> None:
            seen.append((connection, batch.num_rows))

    Engine(location, Plain()).run(0, [1, 2, 3])
    assert seen == [(None, 2), (None, 1)]


def test_t2_what_another_mode_prepared_is_not_taken_for_delivered(location: str, endpoint: Endpoint) -> None:
    class Changed(Upserting):
        name = "prepared"

    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("commit", *[ConnectionError("down")] * 3)
    with pytest.raises(CommitError):
        engine.run(0, [1, 2])
    with pytest.raises(ConfigError, match=r"'prepared': checkpoint 0 was decided while .* another mode"):
        engine.restart(Changed(endpoint))
    engine.restart(PreparingSink(endpoint))
    assert endpoint.rows == [1, 2]


def test_standard_output_gets_one_json_object_a_row(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(location, StdoutSink())
    engine.run(0, [1], [2])
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == [{"id": 1, "name": "n1"}, {"id": 2, "name": "n2"}]
    engine.restart()
    engine.run(0, [1], [2])
    assert capsys.readouterr().out == "", "the log knows that it was printed"


def test_the_name_of_a_printing_sink_is_checked() -> None:
    with pytest.raises(ConfigError, match="name must have 1 to 100 bytes"):
        StdoutSink(name="")
