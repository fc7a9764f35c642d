"""The Kafka sink: its options, and which of the ways of delivering they choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.connectors.kafka import ids, marks
from holdfast.connectors.kafka.arrow import check_schema
from holdfast.connectors.kafka.client import check_servers
from holdfast.connectors.kafka.plain import Plain
from holdfast.connectors.kafka.security import python_settings
from holdfast.connectors.kafka.target import Target
from holdfast.connectors.kafka.two_phase import TwoPhase
from holdfast.connectors.kafka.write_ahead import WriteAhead
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task, check_name
from holdfast.errors import ConfigError
from holdfast.sinks.ledger import check_ledger
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.sinks.write_ahead import check_limits

DELIVERIES = ("none", "at-least-once", "exactly-once")
MODES = ("two-phase", "write-ahead")
_RESERVED = ("transactional.id", "bootstrap.servers", "enable.idempotence")


class KafkaSink(TwoPhaseCommitSink):
    """Exactly-once into Kafka topics.

    `mode="two-phase"`: each task's rows are one transaction, which the driver ends after the decision. Needs brokers
    of version 4 or newer, and a `transaction.timeout.ms` (default 15 minutes, the brokers' limit) longer than a batch
    and any outage between decision and commit; what Kafka drops nevertheless is produced again from the replay.
    `mode="write-ahead"`: rows are sealed in the log first and published after the decision, so the brokers may be away
    for long and the query need not replay equally; rows are written twice.

    `delivery` None is that of the pipeline. The columns are those of Spark's own sink: value, and optionally key,
    topic, partition, headers. Read-committed consumers see a subtask's rows of a checkpoint whole or not at all.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str | None = None,
        *,
        delivery: str | None = None,
        mode: str = "two-phase",
        config: Mapping[str, Any] | None = None,
        max_pending: int | None = 1000,
        max_pending_bytes: int | None = 10 * 1024**3,
        name: str | None = None,
    ) -> None:
        servers = check_servers(bootstrap_servers)
        if topic is not None and (not isinstance(topic, str) or not topic):
            raise ConfigError(f"topic must be a name, not {topic!r}")
        if delivery is not None and delivery not in DELIVERIES:
            raise ConfigError(f"delivery must be one of {', '.join(DELIVERIES)}, or None, not {delivery!r}")
        if mode not in MODES:
            raise ConfigError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        for key in config or ():
            if key in _RESERVED:
                raise ConfigError(f"config: {key} is set by the sink")
        settings = {"transaction.timeout.ms": 900_000, "partitioner": "murmur2_random", **(config or {})}
        # What one of the two clients cannot have is refused here and not in a task.
        python_settings({**settings, "bootstrap.servers": servers})
        self.delivery, self.mode = delivery, mode
        self.may_lag = mode == "write-ahead" and delivery in (None, "exactly-once")
        self.repairable = mode == "two-phase" and delivery in (None, "exactly-once")
        self.max_pending, self.max_pending_bytes = check_limits(max_pending, max_pending_bytes)
        if self.repairable:
            self.transaction_timeout = int(settings["transaction.timeout.ms"]) / 1000
        self.name = check_name("name", name or f"kafka-{topic or 'rows'}"[:100])
        self._servers, self._topic, self._config = servers, topic, settings
        self._way: TwoPhaseCommitSink | None = None

    # -- on the driver ----------------------------------------------------------------------------------------------

    def open(self, run: Run) -> None:
        """Check the columns, the brokers and the ledger, and choose the way rows go."""
        if run.schema is not None:
            check_schema(run.schema, self._topic)
        target = Target(self.name, self._servers, self._topic, self._config)
        delivery = self.delivery or run.delivery
        if delivery == "exactly-once":
            self._way = TwoPhase(target) if self.mode == "two-phase" else WriteAhead(target)
            self._check_ledger(run, target)
        else:
            self._way = Plain(target, wait=delivery == "at-least-once")
        self._way.open(run)

    def _check_ledger(self, run: Run, target: Target) -> None:
        """Rule 10: refuse what another checkpoint location, or a later state of this one, has delivered."""
        group = ids.ledger_group(run.pipeline, self.name)
        if run.take_over:
            marks.take_over(target, group, run.lineage)
        found = marks.read(target.settings, [group], stable=False)[group]
        check_ledger(run, f"the ledger of sink {self.name!r} (group {group!r} in Kafka)", marks.ledger(found))

    def _check_mode(self, committables: Sequence[Mapping[str, Any]]) -> None:
        """What the other mode prepared cannot be committed by this one."""
        sealed = isinstance(self._way, WriteAhead)
        if any(("handle" in c) != sealed for c in committables if isinstance(self._way, TwoPhase | WriteAhead)):
            other = "two-phase" if sealed else "write-ahead"
            raise ConfigError(
                f"sink {self.name!r}: checkpoints decided with mode={other!r} are not delivered yet: start once more "
                f"with mode={other!r}, let it catch up, then change it"
            )

    def close(self) -> None:
        """See TwoPhaseCommitSink."""
        if self._way is not None:
            self._way.close()

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """See TwoPhaseCommitSink."""
        self._check_mode(committables)
        return self._chosen.commit(checkpoint_id, committables, tasks)

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """See TwoPhaseCommitSink."""
        self._check_mode([c for committables in decided.values() for c in committables])
        self._chosen.recover(pipeline, generation, decided)

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """See TwoPhaseCommitSink."""
        self._chosen.notify_checkpoint_complete(checkpoint_id)

    # -- in the task ------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> Any:
        """See TwoPhaseCommitSink."""
        return self._chosen.begin(task)

    def write(self, txn: Any, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        self._chosen.write(txn, batch)

    def pre_commit(self, txn: Any) -> Mapping[str, Any] | None:
        """See TwoPhaseCommitSink."""
        return self._chosen.pre_commit(txn)

    def abort(self, txn: Any) -> None:
        """See TwoPhaseCommitSink."""
        self._chosen.abort(txn)

    @property
    def _chosen(self) -> TwoPhaseCommitSink:
        if self._way is None:
            raise ConfigError(f"sink {self.name!r} is not part of a running query")
        return self._way
