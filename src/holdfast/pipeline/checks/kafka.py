"""Kafka: brokers, the topic of a sink, transactions, marks; and the sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.checkpoint.storage import open_storage
from holdfast.connectors.kafka.client import attempts
from holdfast.connectors.kafka.client.brokers import broker_settings, topic_setups
from holdfast.connectors.kafka.client.denied import check_readable
from holdfast.connectors.kafka.client.retention import in_words, marks_last
from holdfast.connectors.kafka.client.settings import admin
from holdfast.connectors.kafka.client.transactions import TransactionClient
from holdfast.connectors.kafka.client.wire import Connection
from holdfast.connectors.kafka.producer.arrow import check_schema
from holdfast.connectors.kafka.sink import ids, marks
from holdfast.connectors.kafka.sink.options import KafkaSink
from holdfast.errors import ConfigError
from holdfast.pipeline.checks.registry import Problem, check, fatal, warning
from holdfast.pipeline.checks.situation import Situation
from holdfast.spark.kafka import KafkaProgress, ReadFrom

_MAXIMUM = "transaction.max.timeout.ms"
#: marks that are forgotten sooner than this, in seconds, are a trap after a long weekend
SHORT = 3 * 24 * 3600.0


def _transactional(situation: Situation, sink: KafkaSink) -> bool:
    return (sink.delivery or situation.delivery) == "exactly-once"


@check(
    "kafka-reach",
    KafkaSink,
    remedy="See that the brokers run and can be reached from here; check bootstrap_servers, "
    "security.protocol, sasl.* and ssl.*",
)
def reach(situation: Situation, sink: KafkaSink) -> Iterator[Problem]:
    """The brokers answer, let this client in, and can do what the mode needs."""
    with TransactionClient(sink.target.settings, owner=sink.target.owner) as client:
        if _transactional(situation, sink) and sink.mode == "two-phase":
            client.require_transactions()
    yield from ()


@check(
    "kafka-topic",
    KafkaSink,
    remedy="Create the topic, or grant DESCRIBE and WRITE on it; brokers that make topics on "
    "demand make it when the query starts, with their defaults",
)
def topic(situation: Situation, sink: KafkaSink) -> Iterator[Problem]:
    """The topic is there."""
    target = sink.target
    if target.topic is None or target.topic in topic_setups(target.settings, [target.topic], owner=target.owner):
        return
    told = broker_settings(target.settings, ["auto.create.topics.enable"], owner=target.owner)
    made = any(found.get("auto.create.topics.enable") == "true" for found in told)
    text = f"topic {target.topic!r} is not in Kafka at {target.servers}, or may not be seen"
    yield warning(f"{text}; the brokers make it on demand") if made else fatal(text)


@check("kafka-columns", KafkaSink, remedy="Give the sink key and value, for example value: to_json(struct(*))")
def columns(situation: Situation, sink: KafkaSink) -> Iterator[Problem]:
    """The rows have the columns of a message."""
    schema = situation.schemas.get(sink.name)
    if schema is not None:
        check_schema(sink.sent(schema), sink.target.topic)
    yield from ()


@check(
    "kafka-transaction-timeout",
    KafkaSink,
    remedy="Set transaction.timeout.ms in the sink's config to at most the "
    "brokers' transaction.max.timeout.ms, raise that, or make batches smaller; or use mode: write-ahead",
)
def transaction_timeout(situation: Situation, sink: KafkaSink) -> Iterator[Problem]:
    """Transactions may stay open for longer than batches and waits take, and the brokers allow it."""
    if not _transactional(situation, sink):
        return
    target = sink.target
    own = int(target.config["transaction.timeout.ms"])
    told = broker_settings(target.settings, [_MAXIMUM], owner=target.owner)
    limit = min((int(found[_MAXIMUM]) for found in told if _MAXIMUM in found), default=None)
    if limit is not None and own > limit:
        yield fatal(f"transaction.timeout.ms is {own}, and a broker allows {_MAXIMUM}={limit}: it refuses transactions")
    if sink.mode != "two-phase":
        return
    longest = max((sum(stats.durations.values()) for stats in situation.place.history), default=0.0)
    if longest > 0.5 * own / 1000:
        yield warning(
            f"a checkpoint took {longest:.0f} s, and Kafka drops a transaction that is open for {own / 1000:.0f} s"
        )
    wait = situation.retry.seconds
    if wait > own / 1000:
        yield warning(
            f"a commit is tried again for {wait:.0f} s, and Kafka drops its transactions after {own / 1000:.0f} s",
            "Set retry.for_ shorter than transaction.timeout.ms: then a restart finds them still open",
        )


@check("kafka-rights", KafkaSink, remedy="Grant what is missing with kafka-acls.sh; docs/kafka.md has all rights")
def rights(situation: Situation, sink: KafkaSink) -> Iterator[Problem]:
    """This user may write the topic, use the transactional ids and store marks; tried with requests that do nothing."""
    target, run = sink.target, situation.run
    there = target.topic in topic_setups(target.settings, [target.topic], owner=target.owner) if target.topic else False
    transactional = _transactional(situation, sink)
    refused = _refused(sink, run.pipeline, run.lineage or "0" * 32) if transactional else []
    for text in dict.fromkeys(str(error) for error in refused):
        yield fatal(text)
    if there and target.topic is not None and not refused:
        # READ is for the marks, which are offsets of this topic.
        client = admin({**target.settings, "log_level": 0})
        check_readable(client, target.settings, [target.topic], right="Read" if transactional else "Write")


def _refused(sink: KafkaSink, pipeline: str, lineage: str) -> list[ConfigError]:
    target = sink.target
    prefix = ids.sink_prefixes(pipeline, sink.name)[0 if sink.mode == "two-phase" else 1]
    # Of no attempt and no subtask: nobody has used it and nobody will.
    transactional_id = f"{prefix}{lineage[:12]}-check"
    groups = [ids.mark_group(transactional_id, lineage), ids.ledger_group(pipeline, sink.name)]
    with Connection(target.settings, owner=target.owner) as connection:
        found = [attempts.may_mark(connection, target.settings, transactional_id, group) for group in groups]
        if target.topic is not None:
            found.insert(0, attempts.may_write(connection, target.settings, transactional_id, target.topic))
    return [error for error in found if error is not None]


@check(
    "kafka-id-prefix", KafkaSink, remedy="Give this pipeline another name, or stop the other one and pass --take-over"
)
def id_prefix(situation: Situation, sink: KafkaSink) -> Iterator[Problem]:
    """No other live pipeline uses the same name: none from another location has transactions open."""
    if not _transactional(situation, sink):
        return
    run, target = situation.run, sink.target
    with TransactionClient(target.settings, owner=target.owner) as client:
        names = [name for prefix in ids.sink_prefixes(run.pipeline, sink.name) for name in client.named(prefix)]
    parsed = [ids.parse(name) or ids.parse_publisher(name) for name in names]
    others = {p.lineage for p in parsed if p is not None and p.lineage != run.lineage[:12]}
    if others:
        text = f"{len(others)} other checkpoint location has transactions open under {run.pipeline!r}/{sink.name!r}"
        yield warning(text) if situation.takes_over else fatal(text)


@check("kafka-replication", KafkaSink, remedy="Use a topic with three replicas and min.insync.replicas=2")
def replication(situation: Situation, sink: KafkaSink) -> Iterator[Problem]:
    """What Kafka says it has outlives a broker: topic, marks and transactions have replicas that must be in sync."""
    target = sink.target
    if target.topic is None:
        return
    found = topic_setups(
        target.settings, [target.topic, "__consumer_offsets", "__transaction_state"], owner=target.owner
    )
    for setup in found.values():
        if setup.min_in_sync is not None and setup.in_sync < setup.min_in_sync:
            yield fatal(
                f"topic {setup.name!r} has {setup.in_sync} replicas in sync and min.insync.replicas="
                f"{setup.min_in_sync}: nothing can be written",
                "Bring the brokers back, or lower min.insync.replicas",
            )
        elif setup.replicas < 2:
            yield warning(f"topic {setup.name!r} has one replica: what is committed is gone with its broker's disk")
        elif setup.name == target.topic and setup.min_in_sync == 1:
            yield warning(
                f"topic {setup.name!r} has {setup.replicas} replicas and min.insync.replicas=1: a row that one broker "
                "alone has counts as written"
            )


@check("kafka-unclean-election", KafkaSink, remedy="Set unclean.leader.election.enable=false for the topic")
def unclean_election(situation: Situation, sink: KafkaSink) -> Iterator[Problem]:
    """No broker that lacks rows can become a leader."""
    target = sink.target
    names = [name for name in (target.topic, "__consumer_offsets", "__transaction_state") if name is not None]
    for setup in topic_setups(target.settings, names, owner=target.owner).values():
        if setup.unclean_elections:
            yield warning(f"topic {setup.name!r} has unclean.leader.election.enable=true: committed rows can be lost")


@check(
    "kafka-offsets-retention",
    KafkaSink,
    remedy="Raise offsets.retention.minutes of the brokers (Kafka's default is 10080, a week)",
)
def offsets_retention(situation: Situation, sink: KafkaSink) -> Iterator[Problem]:
    """Brokers remember what was committed for longer than a pipeline is likely to be down."""
    if not _transactional(situation, sink):
        return
    lasts = marks_last(sink.target.settings, owner=sink.target.owner)
    if lasts < SHORT:
        yield warning(
            f"brokers are sure to remember marks for {in_words(lasts)} only: after a longer stop nobody can tell "
            "whether the last transactions were committed"
        )


@check(
    "kafka-ledger",
    KafkaSink,
    remedy="Start from the location that wrote it, or give the pipeline a new name, or pass "
    "--take-over; for one that was restored, see holdfast resolve --accept-restored",
)
def ledger(situation: Situation, sink: KafkaSink) -> Iterator[Problem]:
    """The marks in Kafka are this location's, neither ahead of its log nor behind it."""
    if _transactional(situation, sink) and not situation.takes_over:
        marks.compare(situation.run_of(sink), sink.target)
    yield from ()


@check("kafka-source", ReadFrom, remedy="See what the message says: start, topics, group or rights of the source")
def source(situation: Situation, read: ReadFrom) -> Iterator[Problem]:
    """The source can start or go on where it should, and no row it needs has expired."""
    progress = KafkaProgress(situation.frame, open_storage(situation.location))
    progress.check_start(situation.place.engine.planned, situation.place.engine.committed, only=read.index)
    yield from ()


@check("kafka-source-group", ReadFrom, remedy="Grant READ on the group, or pass commit_offsets: false")
def source_group(situation: Situation, read: ReadFrom) -> Iterator[Problem]:
    """This user may commit offsets to the consumer group; tried with a request that does nothing."""
    if not read.commits:
        return
    settings: Mapping[str, Any] = read.settings
    with Connection(settings, owner=read.name) as connection:
        refused = attempts.may_commit_offsets(connection, settings, read.group)
    if refused is not None:
        yield warning(f"{refused}; rows arrive all the same, but the group's lag does not show it")
