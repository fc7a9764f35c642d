"""Exactly-once delivery for Spark Structured Streaming.

The public names are loaded when they are first used: `holdfast status` starts without Spark, and a Spark worker loads
only what its task needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.core.version import __version__ as __version__

if TYPE_CHECKING:
    from holdfast.checkpoint.history import CheckpointStats, checkpoints
    from holdfast.checkpoint.ports import Run, Tasks
    from holdfast.checkpoint.savepoint_orders import savepoint
    from holdfast.committers.base import CheckpointCommitter
    from holdfast.committers.cassandra import CassandraCheckpointCommitter
    from holdfast.committers.file import FileCheckpointCommitter
    from holdfast.committers.sql import SqlCheckpointCommitter
    from holdfast.connectors.cassandra.sink import CassandraSink
    from holdfast.connectors.files.buckets import TimeBucket
    from holdfast.connectors.files.rolling import Rolling
    from holdfast.connectors.files.sink import FileSink
    from holdfast.connectors.kafka.sink.options import KafkaSink
    from holdfast.connectors.kafka.source.start import StartFrom
    from holdfast.connectors.kafka.source.whole import WholeCheckpoint, read_whole_checkpoints
    from holdfast.connectors.postgres.sink import PostgresSink
    from holdfast.connectors.sqlite.sink import SqliteSink
    from holdfast.connectors.stdout import StdoutSink
    from holdfast.core.model import Outcome, PendingCheckpoint
    from holdfast.core.naming import Task, parse_token
    from holdfast.core.retry import Retry
    from holdfast.errors import HoldfastError
    from holdfast.sinks.channel import current_task
    from holdfast.sinks.dead_letters import DeadLetters
    from holdfast.sinks.idempotent import IdempotentSink
    from holdfast.sinks.route import route
    from holdfast.sinks.two_phase import TwoPhaseCommitSink
    from holdfast.sinks.write_ahead import WriteAheadSink
    from holdfast.spark.debezium import from_debezium
    from holdfast.spark.kafka import read_kafka
    from holdfast.spark.session import session
    from holdfast.spark.stream import write_stream
    from holdfast.telemetry.openlineage import lineage
    from holdfast.telemetry.opentelemetry import traces
    from holdfast.telemetry.serve import metrics

__all__ = [
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
    "lineage",
    "metrics",
    "parse_token",
    "read_kafka",
    "read_whole_checkpoints",
    "route",
    "savepoint",
    "session",
    "traces",
    "write_stream",
]
#: public name -> the module it is in
_HOMES = {
    "CassandraCheckpointCommitter": "holdfast.committers.cassandra",
    "CassandraSink": "holdfast.connectors.cassandra.sink",
    "CheckpointCommitter": "holdfast.committers.base",
    "CheckpointStats": "holdfast.checkpoint.history",
    "DeadLetters": "holdfast.sinks.dead_letters",
    "FileCheckpointCommitter": "holdfast.committers.file",
    "FileSink": "holdfast.connectors.files.sink",
    "HoldfastError": "holdfast.errors",
    "IdempotentSink": "holdfast.sinks.idempotent",
    "KafkaSink": "holdfast.connectors.kafka.sink.options",
    "Outcome": "holdfast.core.model",
    "PendingCheckpoint": "holdfast.core.model",
    "PostgresSink": "holdfast.connectors.postgres.sink",
    "Retry": "holdfast.core.retry",
    "Rolling": "holdfast.connectors.files.rolling",
    "Run": "holdfast.checkpoint.ports",
    "SqlCheckpointCommitter": "holdfast.committers.sql",
    "SqliteSink": "holdfast.connectors.sqlite.sink",
    "StartFrom": "holdfast.connectors.kafka.source.start",
    "StdoutSink": "holdfast.connectors.stdout",
    "Task": "holdfast.core.naming",
    "Tasks": "holdfast.checkpoint.ports",
    "TimeBucket": "holdfast.connectors.files.buckets",
    "TwoPhaseCommitSink": "holdfast.sinks.two_phase",
    "WholeCheckpoint": "holdfast.connectors.kafka.source.whole",
    "WriteAheadSink": "holdfast.sinks.write_ahead",
    "checkpoints": "holdfast.checkpoint.history",
    "current_task": "holdfast.sinks.channel",
    "from_debezium": "holdfast.spark.debezium",
    "lineage": "holdfast.telemetry.openlineage",
    "metrics": "holdfast.telemetry.serve",
    "parse_token": "holdfast.core.naming",
    "read_kafka": "holdfast.spark.kafka",
    "read_whole_checkpoints": "holdfast.connectors.kafka.source.whole",
    "route": "holdfast.sinks.route",
    "savepoint": "holdfast.checkpoint.savepoint_orders",
    "session": "holdfast.spark.session",
    "traces": "holdfast.telemetry.opentelemetry",
    "write_stream": "holdfast.spark.stream",
}

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Load a public name on its first use (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """All public names, loaded or not."""
        return sorted({*globals(), *__all__})
