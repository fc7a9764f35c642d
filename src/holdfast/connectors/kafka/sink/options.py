"""The Kafka sink: its options, and which of the ways of delivering they choose."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.connectors.kafka.client.retention import DEFAULT, SURE, marks_last
from holdfast.connectors.kafka.client.security import python_settings
from holdfast.connectors.kafka.client.settings import check_servers
from holdfast.connectors.kafka.producer.arrow import COLUMNS, check_schema
from holdfast.connectors.kafka.sink import marks
from holdfast.connectors.kafka.sink.plain import Plain
from holdfast.connectors.kafka.sink.progress import Progress
from holdfast.connectors.kafka.sink.target import Target
from holdfast.connectors.kafka.sink.two_phase import TwoPhase
from holdfast.connectors.kafka.sink.write_ahead import WriteAhead
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task, check_name
from holdfast.core.options import SECRETS, Condition, Limit, checked, one_of, text
from holdfast.errors import ConfigError, RowError
from holdfast.sinks import wal
from holdfast.sinks.pattern import MAX_TARGETS, Pattern, Targets, parse_pattern
from holdfast.sinks.two_phase import TwoPhaseCommitSink

DELIVERIES = ("none", "at-least-once", "exactly-once")
MODES = ("two-phase", "write-ahead")
LONGEST_TOPIC = 249
_Topic = Annotated[str, text("a name")]
_Expression = Annotated[str, text("an expression in Spark SQL such as 'to_json(struct(*))'")]
_RESERVED = ("transactional.id", "bootstrap.servers", "enable.idempotence")


class KafkaSink(TwoPhaseCommitSink):
    """Exactly-once into Kafka topics.

    `mode="two-phase"`: each task's rows are one transaction, which the driver ends after the decision. Needs brokers
    of version 4 or newer, and a `transaction.timeout.ms` (default 15 minutes, the brokers' limit) longer than a batch
    and any outage between decision and commit; what Kafka drops nevertheless is produced again from the replay.
    `mode="write-ahead"`: rows are sealed in the log first and published after the decision, so the brokers may be away
    for long and the query need not replay equally; rows are written twice.

    `delivery` None is that of the pipeline. The columns are those of Spark's own sink: value, and optionally key,
    topic, partition, headers. `key` and `value` make these two in Spark SQL from columns of any name, for example
    `key="customer", value="to_json(struct(*))"`; where `delete_when` is true the value is null, which deletes the key
    from a compacted topic. `topic` may be a pattern over columns, such as "orders.{country}", for at most `max_targets`
    topics, which must be there. Read-committed consumers see a subtask's rows of a checkpoint whole or not at all;
    `progress_topic` gets one message a checkpoint, after its rows, for readers of whole checkpoints.
    """

    extras = ("kafka",)
    takes_messages = True
    fans_out = False
    gathers = True

    @checked
    def __init__(
        self,
        bootstrap_servers: str,
        topic: _Topic | None = None,
        *,
        key: _Expression | None = None,
        value: _Expression | None = None,
        delete_when: Condition | None = None,
        progress_topic: _Topic | None = None,
        delivery: Annotated[str, one_of(*DELIVERIES)] | None = None,
        mode: Annotated[str, one_of(*MODES)] = "two-phase",
        config: Annotated[Mapping[str, Any], SECRETS] | None = None,
        max_pending: Limit = 1000,
        max_pending_bytes: Limit = 10 * 1024**3,
        max_targets: Targets = MAX_TARGETS,
        name: str | None = None,
    ) -> None:
        servers = check_servers(bootstrap_servers)
        self.pattern, self.max_targets = parse_pattern("topic", topic, dots=True), max_targets
        self.own_columns = _own_columns(key, value, delete_when, self.pattern.columns if self.pattern else ())
        if progress_topic is not None and (topic is None or topic == progress_topic or self.pattern is not None):
            raise ConfigError("progress_topic needs topic=..., one other topic: it tells where in it a checkpoint ends")
        if progress_topic is not None and delivery not in (None, "exactly-once"):
            raise ConfigError(f"progress_topic needs delivery='exactly-once', not {delivery!r}")
        for key in config or ():
            if key in _RESERVED:
                raise ConfigError(f"config: {key} is set by the sink")
        given = {key: str(value) if isinstance(value, os.PathLike) else value for key, value in (config or {}).items()}
        settings = {"transaction.timeout.ms": 900_000, "partitioner": "murmur2_random", **given}
        # What one of the two clients cannot have is refused here and not in a task.
        python_settings({**settings, "bootstrap.servers": servers})
        self.delivery, self.mode = delivery, mode
        self.may_lag = mode == "write-ahead" and delivery in (None, "exactly-once")
        self.repairable = mode == "two-phase" and delivery in (None, "exactly-once")
        self.max_pending, self.max_pending_bytes = max_pending, max_pending_bytes
        if self.repairable:
            self.transaction_timeout = int(settings["transaction.timeout.ms"]) / 1000
        self.name = check_name("name", name or f"kafka-{topic or 'rows'}"[:100])
        self._servers, self._topic, self._config = servers, None if self.pattern else topic, settings
        #: topics that this task has met, when the rows name them
        self._met: set[str] = set()
        self.progress_topic = progress_topic
        self._progress: Progress | None = None
        self._way: TwoPhaseCommitSink | None = None
        #: by kind of committable: the chosen way, and those of modes that the sink had before
        self._ways: dict[str, TwoPhaseCommitSink] = {}
        self._run: Run | None = None
        self._swept = False
        self._known = marks.KnownToBrokers()
        self._marks_last = SURE * DEFAULT

    def __getstate__(self) -> dict[str, Any]:
        """Tasks write in the chosen way only."""
        return {**self.__dict__, "_ways": {}, "_met": set(), "_progress": None}

    @property
    def address(self) -> str:
        """See TwoPhaseCommitSink."""
        return self._servers

    @property
    def target(self) -> Target:
        """Where it writes, as the options say."""
        return Target(self.name, self._servers, self._topic, self._config)

    def sent(self, schema: pa.Schema) -> pa.Schema:
        """The rows as they are sent: with a pattern, without what only the topic's name needs, and with the topic."""
        return schema if self.pattern is None else with_topic(schema, self.pattern)

    def shared_paths(self, location: str) -> Sequence[str]:
        """See TwoPhaseCommitSink; `may_lag` says that rows go through the log."""
        return (location,) if self.may_lag else ()

    # -- on the driver ----------------------------------------------------------------------------------------------

    def open(self, run: Run) -> None:
        """Check the columns, the brokers and the ledger, and choose the way rows go."""
        if run.schema is not None:
            check_schema(self.sent(run.schema), self._topic)
        self.close()
        self._known = marks.KnownToBrokers()
        target = self.target.as_it_is()
        delivery = self.delivery or run.delivery
        if self.progress_topic is not None:
            if delivery != "exactly-once":
                raise ConfigError(f"sink {self.name!r}: progress_topic needs delivery='exactly-once', not {delivery!r}")
            replace(target, topic=self.progress_topic).as_it_is()
        self._progress = Progress(target, run)
        if delivery == "exactly-once":
            self._marks_last = marks_last(target.settings, owner=target.owner)
            target = replace(target, marks_last=self._marks_last)
            marks.check(run, target)
            way: TwoPhaseCommitSink = TwoPhase(target) if self.mode == "two-phase" else WriteAhead(target)
        else:
            way = Plain(target, wait=delivery == "at-least-once")
        way.open(run)
        self._run, self._way, self._swept = run, way, not isinstance(way, TwoPhase | WriteAhead)
        self._ways = {} if self._swept else {self.mode: way}

    def close(self) -> None:
        """See TwoPhaseCommitSink."""
        for way in self._ways.values():
            way.close()
        if self._progress is not None:
            self._progress.close()

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Commit each in the mode it was prepared in, whatever the sink's is now (rule 16)."""
        if self._run is not None and self._known.due:
            marks.check_known(self._run, replace(self.target, marks_last=self._marks_last), self._known)
        self._known.in_doubt = True
        kinds = _by_kind({checkpoint_id: committables})
        answers = [self._of(kind).commit(checkpoint_id, of[checkpoint_id], tasks) for kind, of in kinds.items()]
        unfinished = [answer for answer in answers if answer is not None and not answer.done]
        if unfinished:
            return unfinished[0]
        if kinds:
            self._known = marks.KnownToBrokers(max(checkpoint_id, self._known.checkpoint_id), time.time())
        if self._progress is not None and all("progress_topic" in c for c in committables):
            self._progress.tell(checkpoint_id, committables)
        return Outcome.ALREADY_COMMITTED if set(answers) == {Outcome.ALREADY_COMMITTED} else Outcome.COMMITTED

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """See TwoPhaseCommitSink; the first time also what the sink left behind when it had another mode."""
        kinds = _by_kind(decided)
        for mode in MODES:
            if mode in self._ways or mode in kinds or not self._swept:
                self._of(mode).recover(pipeline, generation, kinds.get(mode, {}))
        self._swept = True

    def sweep_log(self, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]) -> None:
        """Remove what tasks have left in the write-ahead log; touches no broker."""
        self._of("write-ahead").sweep_log(generation, _by_kind(decided).get("write-ahead", {}))  # type: ignore[attr-defined]

    def still_prepared(self, committables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """See TwoPhaseCommitSink."""
        return self._chosen.still_prepared(committables)

    def rows_of(self, committables: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch] | None:
        """Those sealed in the log; what is in an open transaction cannot be read back."""
        if self._run is None or any(_kind(committable) != "write-ahead" for committable in committables):
            return None
        location = self._run.location
        return (batch for committable in committables for batch in wal.read_log(location, committable))

    def as_decided(self, committables: Sequence[Mapping[str, Any]]) -> KafkaSink:
        """See TwoPhaseCommitSink: in the mode, to the topic and by the partitioner of the decision."""
        told = [c for c in committables if _kind(c) == "two-phase" and c["version"] > 1]  # version 1 did not say
        if not told:
            return self
        config = {**self._config, "partitioner": told[0]["partitioner"]}
        sink = copy.copy(self)
        sink.pattern = parse_pattern("topic", told[0].get("topic_pattern"), dots=True)
        sink.repairable = True
        sink._way = TwoPhase(Target(self.name, self._servers, told[0]["topic"], config))
        return sink

    def _of(self, mode: str) -> TwoPhaseCommitSink:
        """The way that commits and sweeps what was prepared in this mode."""
        if mode not in self._ways:
            if self._run is None:
                raise ConfigError(f"sink {self.name!r} is not part of a running query")
            target = replace(self.target, marks_last=self._marks_last)
            way: TwoPhaseCommitSink = TwoPhase(target, writes=False) if mode == "two-phase" else WriteAhead(target)
            way.open(self._run)
            # A new dict: another thread may be going through this one.
            self._ways = {**self._ways, mode: way}
        return self._ways[mode]

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """See TwoPhaseCommitSink."""
        for way in self._ways.values():
            way.notify_checkpoint_complete(checkpoint_id)

    # -- in the task ------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> Any:
        """See TwoPhaseCommitSink."""
        return self._chosen.begin(task)

    def write(self, txn: Any, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        self._chosen.write(txn, batch if self.pattern is None else self._named(batch, self.pattern))

    def _named(self, batch: pa.RecordBatch, pattern: Pattern) -> pa.RecordBatch:
        """The rows with their topics; what makes none, or one too many, is refused here, by row."""
        try:
            topics = pattern.names(batch, self._wrong)
        except RowError as error:
            told = f"sink {self.name!r}: {error}"
            raise RowError(told, rows=error.rows, column=error.column, reason=error.reason) from None
        names = [name for name in batch.schema.names if name in COLUMNS and name != "topic"]
        return batch.select(names).append_column("topic", topics.cast(pa.string()))

    def _wrong(self, topic: str) -> str | None:
        if len(topic) > LONGEST_TOPIC:
            return f"has {len(topic)} characters, and Kafka takes {LONGEST_TOPIC} for the name of a topic"
        if topic not in self._met and len(self._met) >= self.max_targets:
            return f"would be one more than max_targets={self.max_targets}: raise it, or make fewer names in the query"
        self._met.add(topic)
        return None

    def pre_commit(self, txn: Any) -> Mapping[str, Any] | None:
        """See TwoPhaseCommitSink."""
        data = self._chosen.pre_commit(txn)
        if data is None:
            return None
        pattern = {} if self.pattern is None else {"topic_pattern": self.pattern.text}
        progress = {} if self.progress_topic is None else {"progress_topic": self.progress_topic}
        return {**data, **pattern, **progress}

    def abort(self, txn: Any) -> None:
        """See TwoPhaseCommitSink."""
        self._chosen.abort(txn)

    @property
    def _chosen(self) -> TwoPhaseCommitSink:
        if self._way is None:
            raise ConfigError(f"sink {self.name!r} is not part of a running query")
        return self._way


def with_topic(schema: pa.Schema, pattern: Pattern) -> pa.Schema:
    """The rows as they are sent: what only the pattern needs is left out, and the topic is there."""
    pattern.check(schema)
    only_named_by = {name for name in pattern.columns if name not in COLUMNS}
    kept = [field for field in schema if field.name not in {"topic", *only_named_by}]
    return pa.schema([*kept, pa.field("topic", pa.string())])


def _own_columns(
    key: str | None, value: str | None, delete_when: str | None, named_by: Sequence[str]
) -> tuple[str, ...] | None:
    """The expressions that make the sink's columns; None when the DataFrame has them."""
    if delete_when is not None and (key is None or value is None):
        raise ConfigError("delete_when needs key=... and value=...: a message without a value deletes its key")
    if value is None:
        if key is not None:
            raise ConfigError("key needs value=..., for example value='to_json(struct(*))'")
        return None
    made = f"({value})" if delete_when is None else f"if(({delete_when}), NULL, ({value}))"
    further = [f"`{column.replace('`', '``')}`" for column in named_by if column not in ("key", "value")]
    return (*(() if key is None else (f"({key}) AS key",)), f"{made} AS value", *further)


def _kind(committable: Mapping[str, Any]) -> str:
    """The mode that prepared it: a transaction or a file of the log."""
    return "write-ahead" if "handle" in committable else "two-phase"


def _by_kind(
    decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[CheckpointId, list[Mapping[str, Any]]]]:
    kinds: dict[str, dict[CheckpointId, list[Mapping[str, Any]]]] = {}
    for checkpoint_id, committables in decided.items():
        for committable in committables:
            kinds.setdefault(_kind(committable), {}).setdefault(checkpoint_id, []).append(committable)
    return kinds
