"""Exactly-once delivery for Spark Structured Streaming."""

from holdfast.checkpoint.history import CheckpointStats, checkpoints
from holdfast.checkpoint.ports import Run, Tasks
from holdfast.committers.base import CheckpointCommitter
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.committers.sql import SqlCheckpointCommitter
from holdfast.connectors.sqlite import SqliteSink
from holdfast.connectors.stdout import StdoutSink
from holdfast.core.model import Outcome, PendingCheckpoint
from holdfast.core.naming import Task, parse_token
from holdfast.errors import HoldfastError
from holdfast.sinks.idempotent import IdempotentSink
from holdfast.sinks.subtask import current_task
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.sinks.write_ahead import WriteAheadSink
from holdfast.spark.session import session
from holdfast.spark.stream import write_stream

__version__ = "0.1.0"
__all__ = [
    "CheckpointCommitter",
    "CheckpointStats",
    "FileCheckpointCommitter",
    "HoldfastError",
    "IdempotentSink",
    "Outcome",
    "PendingCheckpoint",
    "Run",
    "SqlCheckpointCommitter",
    "SqliteSink",
    "StdoutSink",
    "Task",
    "Tasks",
    "TwoPhaseCommitSink",
    "WriteAheadSink",
    "checkpoints",
    "current_task",
    "parse_token",
    "session",
    "write_stream",
]
