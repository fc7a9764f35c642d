"""What the tests of the checks share: a query as it would be started, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.pipeline.checks.examine import findings
from holdfast.pipeline.checks.registry import CHECKS, Finding, Level
from holdfast.pipeline.checks.situation import Situation
from holdfast.testing.local import LocalBatch, LocalQuery

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
MESSAGES = pa.schema([("key", pa.string()), ("value", pa.string())])


def situation(folder: Path | str, *sinks: Any, schema: pa.Schema = SCHEMA, **options: Any) -> Situation:
    """A pipeline `orders` with its checkpoints in `folder`."""
    name = options.pop("name", "orders")
    return Situation(name, str(folder), sinks, {sink.name: schema for sink in sinks}, **options)


def deliver(folder: Path, *sinks: Any, schema: pa.Schema = SCHEMA, name: str = "orders") -> None:
    """One checkpoint with one row, by a query that then ends."""
    query = LocalQuery(str(folder), name, schema)
    run = query.start(list(sinks))
    row = pa.RecordBatch.from_pylist([dict(zip(schema.names, (1, "one"), strict=True))], schema=SCHEMA)
    row = row if schema == SCHEMA else pa.RecordBatch.from_pylist([{"key": "1", "value": "one"}], schema=schema)
    run.run(0, LocalBatch([[row]]))
    run.deliver()
    assert run.coordinator.drain(60.0) and run.coordinator.failure is None
    run.close()


def found(about: Situation, check: str, **options: Any) -> list[Finding]:
    """What one check says; only it is done, or, where another one finds it, those of its system."""
    alone = CHECKS[check].function is not None and not check.startswith("files")
    only = check if alone else check.partition("-")[0]
    return [finding for finding in findings(about, only=only, **options) if finding.check == check]


def one(about: Situation, check: str, level: Level, *words: str) -> Finding:
    """The only finding of a check: its level, what it says, and that it has a remedy."""
    (finding,) = found(about, check)
    assert finding.level is level, finding
    assert finding.remedy or level is Level.OK
    for word in words:
        assert word in finding.text + finding.remedy, finding
    return finding
