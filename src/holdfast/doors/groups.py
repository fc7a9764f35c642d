"""What a query through this door does not do for the Kafka source of `hf.read_kafka`, told in its log.

Neither the options nor the plan of the query's source reach a data source, so nobody here knows a consumer group. That
it reads Kafka at all shows in what Spark writes down before each batch.
"""

from __future__ import annotations

import json
import logging

from holdfast.checkpoint.enginefiles import sources_of
from holdfast.checkpoint.storage import open_storage
from holdfast.core.model import CheckpointId
from holdfast.errors import StorageError

logger = logging.getLogger("holdfast")


def warn_of_groups(location: str, batch: CheckpointId) -> None:
    """Say that no group gets its offsets (rule 6), when this batch has rows of Kafka."""
    try:
        text = open_storage(location).read(f"offsets/{batch}").decode()
    except (FileNotFoundError, StorageError) as error:
        logger.info("whether the query reads Kafka could not be seen: %s", error)
        return
    topics = sorted({topic for line in sources_of(text.splitlines()) for topic in kafka_topics(line)})
    if topics:
        logger.warning(
            'the query reads Kafka (%s), and through format("holdfast") no consumer group gets its offsets, also when '
            "hf.read_kafka names one: the group seems to stand still. Rows are delivered once all the same, as Spark's "
            "checkpoint keeps the offsets. Where the group must follow, use hf.write_stream on a classic SparkSession",
            ", ".join(topics),
        )


def kafka_topics(line: str) -> list[str]:
    """The topics in a line of `offsets/N`; none when it is not {topic: {partition: offset}}, as of Kafka."""
    try:
        found = json.loads(line)
    except ValueError:
        return []  # a source that writes its offsets in another way, or the line of one that has none yet
    if not isinstance(found, dict):
        return []
    parts = list(found.values())
    shaped = parts and all(isinstance(p, dict) and p and all(map(_partition, p.items())) for p in parts)
    return list(found) if shaped else []


def _partition(entry: tuple[str, object]) -> bool:
    number, offset = entry
    return number.isdigit() and isinstance(offset, int)
