"""The sinks for files, PostgreSQL and Cassandra, for the driver of the crash tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import holdfast as hf

_KINDS: dict[str, Any] = {
    # Files are completed with every checkpoint: otherwise no row would be seen before the end.
    "files": lambda **options: hf.FileSink(rolling=hf.Rolling(age="0s"), **options),
    "postgres": hf.PostgresSink,
    "cassandra": hf.CassandraSink,
    "kafka": hf.KafkaSink,
}


def sinks(stores: Sequence[tuple[str, dict[str, Any]]]) -> list[hf.TwoPhaseCommitSink]:
    """One sink for each (kind, options), in this order."""
    return [_KINDS[kind](**options) for kind, options in stores]
