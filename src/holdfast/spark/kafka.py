"""`read_kafka`: Spark's own Kafka source, with Flink's manners. Rows stay in the JVM."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.checkpoint.enginefiles import sources_of
from holdfast.checkpoint.history import engine_position
from holdfast.checkpoint.storage import Storage
from holdfast.connectors.kafka.client.settings import check_servers, client_config
from holdfast.connectors.kafka.source.group import CommitMode, GroupOffsets, KafkaSource, commit_mode
from holdfast.connectors.kafka.source.start import RowsExpiredError, StartFrom, check_unread, starting_offsets
from holdfast.core.model import CheckpointId
from holdfast.core.options import SECRETS, Rule, checked, made, one_of, text
from holdfast.errors import ConfigError, SourceError
from holdfast.spark import private
from holdfast.spark.private import has_jvm, streaming_sources

logger = logging.getLogger("holdfast")
#: seconds for which a query that has ended tries to tell its consumer groups how far it got
LAST_TRIES = 5.0
#: and before that waits for an attempt that is under way
LAST_WAIT = 20.0
ISOLATION = ("read_committed", "read_uncommitted")
#: Spark Connect has a class of its own for it.
_SESSION = Rule("a SparkSession", lambda value: hasattr(value, "readStream"), secret=True)
_START_FROM = made("one of StartFrom.group_offsets(), .earliest(), .latest(), .timestamp(ms) ...", StartFrom)
#: Marks that travel in the source's options, so that write_stream finds them again in the plan.
_GROUP, _COMMIT, _START, _PROBLEM = (f"holdfast.{name}" for name in ("group", "commit", "start", "problem"))
#: By default Kafka's consumer hands out 500 rows at a time, and each time Spark asks the broker twice for the ends of a
#: partition: a quarter of the time of a batch. What is held in memory is what was fetched, whatever this says.
_DEFAULTS = {"kafka.max.poll.records": "10000"}
_OURS = (
    "subscribe", "subscribepattern", "assign", "startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp",
    "kafka.group.id", "kafka.isolation.level", "kafka.bootstrap.servers", "kafka.enable.auto.commit",
    "kafka.auto.commit.interval.ms", "kafka.auto.offset.reset",
)  # fmt: skip


@checked
def read_kafka(
    spark: Annotated[SparkSession, _SESSION],
    *,
    bootstrap_servers: str,
    topics: Sequence[str] | None = None,
    pattern: Annotated[str, text("a regular expression such as 'orders-.*'")] | None = None,
    group_id: Annotated[str, text("a name")],
    start: Annotated[StartFrom, _START_FROM] | None = None,
    commit_offsets: bool | None = None,
    isolation: Annotated[str, one_of(*ISOLATION)] = "read_committed",
    options: Annotated[Mapping[str, str], SECRETS] | None = None,
) -> DataFrame:
    """A streaming DataFrame over Kafka topics, with the columns of Spark's Kafka source.

    `start` counts only while the query has no checkpoint; the default is where the group has got to, else the earliest
    row. Written by `write_stream`, the offsets of a checkpoint reach the group after every sink and Spark have
    committed it; `commit_offsets=False` switches that off. `options` go to Spark's source as they are
    (`maxOffsetsPerTrigger`, `kafka.*`).
    """
    servers = check_servers(bootstrap_servers)
    if (topics is None) == (pattern is None) or (topics is not None and not topics):
        raise ConfigError("give topics=[...] or pattern='...', one of the two")
    begin = start or StartFrom.group_offsets()
    given = {key: str(value) if isinstance(value, os.PathLike) else value for key, value in (options or {}).items()}
    for key in given:
        if key.lower() in _OURS:
            raise ConfigError(f"options: {key} is set by read_kafka: use its own arguments")
    mode = commit_mode(commit_offsets)
    if mode is CommitMode.ON_CHECKPOINTS and not has_jvm(spark):
        logger.warning(
            "through Spark Connect the offsets of consumer group %r are not committed: queries there run as a data "
            "source, which is not told of its sources, and the group seems to stand still. Rows are delivered once all "
            "the same. Use a classic SparkSession where the group must follow; commit_offsets=False says that it need "
            "not",
            group_id,
        )
    starts = _start_options(servers, topics, pattern, group_id, begin, given)
    reader = spark.readStream.format("kafka").options(**{**_DEFAULTS, **given}).options(**starts)
    reader = reader.option("kafka.bootstrap.servers", servers).option("kafka.isolation.level", isolation)
    reader = (
        reader.option("subscribePattern", pattern) if pattern else reader.option("subscribe", ",".join(topics or ()))
    )
    return reader.option(_GROUP, group_id).option(_COMMIT, mode).option(_START, begin.kind).load()


def _start_options(
    servers: str,
    topics: Sequence[str] | None,
    pattern: str | None,
    group: str,
    start: StartFrom,
    options: Mapping[str, str],
) -> dict[str, str]:
    """Start offsets as Spark wants them: for exactly the partitions there are.

    A start that cannot be resolved matters only if there is no checkpoint, which is known when the query starts. Until
    then it travels with the source, and the offsets are such that Spark itself would refuse them.
    """
    try:
        offsets = starting_offsets(client_config(servers, options), list(topics or ()), pattern, group, start)
    except SourceError as error:
        return {"startingOffsets": json.dumps({"holdfast": {"0": -2}}), _PROBLEM: str(error)}
    return {"startingOffsets": json.dumps({t: {str(n): o for n, o in p.items()} for t, p in offsets.items()})}


@dataclass(frozen=True)
class ReadFrom:
    """A Kafka source of a query, as `read_kafka` was told."""

    index: int
    options: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        """For people."""
        told = {key.lower(): value for key, value in self.options.items()}
        return f"kafka source {told.get('subscribe') or told.get('subscribepattern', '')}".strip()

    @property
    def settings(self) -> dict[str, Any]:
        """For a client of its brokers."""
        return _config(self.options)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.options[_GROUP]

    @property
    def commits(self) -> bool:
        """Whether offsets are committed to the group."""
        return self.options[_COMMIT] == CommitMode.ON_CHECKPOINTS


def kafka_sources(df: DataFrame) -> list[ReadFrom]:
    """Those that `read_kafka` made."""
    return [ReadFrom(i, o) for i, o in enumerate(streaming_sources(df)) if _GROUP in o]


class KafkaProgress:
    """What write_stream does for the Kafka sources of a query: the start check, and the group's offsets."""

    def __init__(self, df: DataFrame, spark_checkpoint: Storage) -> None:
        self._sources = streaming_sources(df)
        self._storage = spark_checkpoint
        self._groups = [
            GroupOffsets(KafkaSource(i, o["kafka.bootstrap.servers"], o[_GROUP], _config(o)))
            for i, o in enumerate(self._sources)
            if o.get(_COMMIT) == CommitMode.ON_CHECKPOINTS
        ]
        self._lock = threading.Lock()

    @property
    def options(self) -> list[Mapping[str, str]]:
        """Those of every streaming source, in Spark's order; of some kinds none are known."""
        return list(self._sources)

    def check_start(
        self, planned: CheckpointId | None, committed: CheckpointId | None, *, only: int | None = None
    ) -> None:
        """Refuse a start that could not be resolved, unless a checkpoint makes it irrelevant (K2, K7).

        With a checkpoint, rows that it has not read yet may have expired while the query was down: refused too, unless
        the user has told Spark not to mind. `only` asks about one of the sources.
        """
        for index, options in enumerate(self._sources):
            if _GROUP not in options or only not in (None, index):
                continue
            if planned is not None:
                logger.info("the checkpoint knows where to go on: start mode %s is ignored", options[_START])
                self._check_checkpoint(index, options, committed)
            elif _PROBLEM in options:
                raise SourceError(options[_PROBLEM])

    def _check_checkpoint(self, index: int, options: Mapping[str, str], committed: CheckpointId | None) -> None:
        lines = None if committed is None else self._offsets(committed)
        if lines is None:
            return  # the first batch: Spark itself compares its start with what is there
        try:
            check_unread(_config(options), json.loads(lines[index]), committed or 0)
        except RowsExpiredError as error:
            careless = {key.lower(): value for key, value in options.items()}.get("failondataloss", "true")
            if careless.lower() != "false":
                raise
            logger.warning("failOnDataLoss is false: %s", error)
        except SourceError as error:
            # Brokers that are away are Spark's to wait for; it compares the offsets too, in other words.
            logger.warning("whether rows have expired since the last checkpoint could not be checked: %s", error)

    def commit_beside(self, complete: CheckpointId | None, location: str) -> None:
        """As `commit`, beside the batch that begins: the source's brokers delay no decision."""
        if self._groups and complete is not None and not self._lock.locked():
            arguments = (complete, location)
            threading.Thread(target=self.commit, args=arguments, daemon=True, name="holdfast-offsets").start()

    def commit(self, complete: CheckpointId | None, location: str, *, last: bool = False) -> None:
        """Commit the offsets of the last checkpoint that all sinks and Spark have committed, and all before it.

        Batches and the timer call it; the second finds it busy and leaves it to the first, so that an older answer
        never overtakes a newer one. When the query has ended nobody comes after it: the `last` call waits for its turn,
        and tries again for a while. It never fails the query, nor ends the timer (K4).
        """
        if not self._groups or complete is None or not self._lock.acquire(timeout=LAST_WAIT if last else 0):
            return
        give_up = time.monotonic() + LAST_TRIES
        try:
            while not self._commit(complete, location) and last and time.monotonic() < give_up:
                time.sleep(1.0)
        except Exception as error:  # noqa: BLE001  the storage; the next batch meets it too if it lasts
            logger.warning("group offsets not committed, trying again later: %s: %s", type(error).__name__, error)
        finally:
            self._lock.release()

    def _commit(self, complete: CheckpointId, location: str) -> bool:
        """Whether every group knows it."""
        _, committed = engine_position(location)
        last = min(complete, -1 if committed is None else committed)
        if last < 0:
            return True
        lines = self._offsets(last)
        if lines is None:
            return True  # pruned by Spark: a later checkpoint is on its way
        done = [group.commit(last, lines) for group in self._groups]
        return all(done)

    def _offsets(self, checkpoint_id: CheckpointId) -> list[str] | None:
        """Where each source stood at the end of a checkpoint; None when Spark pruned that, or wrote it otherwise."""
        try:
            text = self._storage.read(f"offsets/{checkpoint_id}").decode()
        except FileNotFoundError:
            return None
        lines = sources_of(text.splitlines())
        if not lines:
            private.missing_file("offsets/N", f"{self._storage.url}/offsets/{checkpoint_id}")
        return lines or None


def _config(options: Mapping[str, str]) -> dict[str, Any]:
    return client_config(options["kafka.bootstrap.servers"], options)
