"""The public interface: what `import holdfast as hf` offers, and nothing by accident."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
import holdfast.testing

#: design.md, "Public interface"; a name leaves or joins this list on purpose
PUBLIC = {
    "CassandraCheckpointCommitter",
    "CassandraSink",
    "CheckpointCommitter",
    "CheckpointStats",
    "DeadLetters",
    "FileCheckpointCommitter",
    "FileSink",
    "HoldfastError",
    "IdempotentSink",
    "KafkaSink",
    "Outcome",
    "PendingCheckpoint",
    "PostgresSink",
    "Retry",
    "Rolling",
    "Run",
    "SqlCheckpointCommitter",
    "SqliteSink",
    "StartFrom",
    "StdoutSink",
    "Task",
    "Tasks",
    "TimeBucket",
    "TwoPhaseCommitSink",
    "WholeCheckpoint",
    "WriteAheadSink",
    "checkpoints",
    "current_task",
    "from_debezium",
    "parse_token",
    "read_kafka",
    "read_whole_checkpoints",
    "route",
    "savepoint",
    "session",
    "lineage",
    "metrics",
    "traces",
    "write_stream",
}


def test_all_is_what_is_promised() -> None:
    assert set(holdfast.__all__) == PUBLIC
    assert list(holdfast.__all__) == sorted(holdfast.__all__)
    assert set(dir(holdfast)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_name_is_there_and_is_the_one_of_its_module(name: str) -> None:
    value = getattr(holdfast, name)
    assert value is getattr(importlib.import_module(holdfast._HOMES[name]), name)
    assert value.__doc__, f"{name} has no docstring"


def test_type_checkers_and_the_interpreter_are_told_the_same() -> None:
    tree = ast.parse(Path(holdfast.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    told = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == holdfast._HOMES


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'kafka_sink'"):
        holdfast.kafka_sink  # noqa: B018


def test_the_names_for_sink_authors_are_there() -> None:
    assert sorted(holdfast.testing.__all__) == holdfast.testing.__all__
    values = {name: getattr(holdfast.testing, name) for name in holdfast.testing.__all__}
    assert all(callable(value) for name, value in values.items() if name != "faults")
    assert values["faults"] is importlib.import_module("holdfast.core.faults")


def test_the_library_is_imported_without_spark_or_a_connectors_packages() -> None:
    """A Spark worker and the command line pay only for what they use."""
    code = (
        "import sys, holdfast; holdfast.SqliteSink, holdfast.FileCheckpointCommitter, holdfast.checkpoints;"
        "print(sorted({'pyspark', 's3fs', 'confluent_kafka', 'kafka'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
