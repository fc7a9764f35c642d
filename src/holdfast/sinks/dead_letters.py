"""`hf.DeadLetters`: where rows go that a sink does not take, and how many there may be; and the copy that we keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.dead import kept_name
from holdfast.checkpoint.ports import Tasks
from holdfast.checkpoint.reports import copy_file
from holdfast.checkpoint.storage import open_storage
from holdfast.core.model import CheckpointId, Outcome
from holdfast.errors import ConfigError, RecordError
from holdfast.sinks import wal
from holdfast.sinks.letters import MESSAGES, SCHEMA
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.sinks.write_ahead import StagedSink


@dataclass(frozen=True)
class DeadLetters:
    """Rows that a sink refuses, or that a route rejects, go to `sink`, decided together with the good ones.

    Each with its reason, sink, column, checkpoint and content as JSON. Past a limit the batch fails before its
    decision: more than `max_rows` in a checkpoint, or more than `max_ratio` of its rows, where a checkpoint of fewer
    than 1,000 rows counts as one of 1,000. None means no such limit.
    """

    sink: TwoPhaseCommitSink
    max_ratio: float | None = 0.01
    max_rows: int | None = 1000

    def __post_init__(self) -> None:
        if not isinstance(self.sink, TwoPhaseCommitSink):
            raise ConfigError(
                f"DeadLetters: sink must be a sink that is not routed, not {type(self.sink).__name__}: it gets the "
                "columns of dead letters"
            )
        if self.sink.repairable:
            raise ConfigError(
                f"DeadLetters: sink {self.sink.name!r} can lose what was decided and produce it again from a replay of "
                "the stream, which has no dead letters: give it mode='write-ahead'"
            )
        if self.sink.own_columns is not None:
            raise ConfigError(f"DeadLetters: sink {self.sink.name!r} gets the columns of letters: leave its own out")
        ratio, rows = self.max_ratio, self.max_rows
        if ratio is not None and (isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1):
            raise ConfigError(f"max_ratio must be a number above 0 and up to 1, or None for no limit, not {ratio!r}")
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
            raise ConfigError(f"max_rows must be a whole number of at least 1, or None for no limit, not {rows!r}")

    @property
    def schema(self) -> pa.Schema:
        """Of the rows that the sink gets."""
        return MESSAGES if self.sink.takes_messages else SCHEMA


class KeptLetters(StagedSink):
    """Keeps dead letters in the checkpoint location, each with its row, for `holdfast dead-letters`."""

    name = "holdfast-dead-letters"
    overlaps = True
    #: tells the box that this one wants the rows too
    keeps_rows = True

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Copy them out of the log, where they would go with the checkpoint."""
        storage = open_storage(self.run.location)
        with wal.naming_lost(self.run.location, committables):
            for handle in committables:
                target = kept_name(checkpoint_id, handle["handle"])
                if copy_file(storage, handle["handle"], target) != (handle["bytes"], handle["sha256"]):
                    raise RecordError(f"{storage.url}/{handle['handle']} is damaged: its checksum does not fit")
        self.forget_when_complete(checkpoint_id, committables)
        return Outcome.COMMITTED
