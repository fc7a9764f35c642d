"""A real Kafka broker for tests: the one that is shipped for newcomers' jobs, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.testing.servers import kafka
from holdfast.testing.servers.kafka import KAFKA, free_port, new_cluster_id

__all__ = ["KAFKA", "KafkaBroker", "free_port", "new_cluster_id"]
#: No test runs one for so long that Java's second compiler pays: it takes half of the CPU of a start.
QUICK = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaBroker(kafka.KafkaBroker):
    """Up soon; benchmarks take the other one."""

    def __init__(self, folder: Path, *, java: Sequence[str] = QUICK, **more: Any) -> None:
        super().__init__(folder, java=java, **more)
