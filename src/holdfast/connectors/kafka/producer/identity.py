"""Who a producer is to Kafka: its producer id and epoch, for which librdkafka has no call.

Its log tells them at the very moment (`debug=eos`, "Acquired PID{Id:5,Epoch:0}", worded so since version 1.0). The
documented place is its statistics; but for those to be there when a small task ends they would be made a hundred times
a second, which takes a sixtieth of a core for every producer. So they are made once a second, for a librdkafka that
words its log otherwise.
"""

from __future__ import annotations

import ctypes
import json
import re
from typing import Any

from holdfast.connectors.kafka.producer.library import LOG, STATISTICS

#: What librdkafka is told; log lines wait until they are polled for, so that no thread of its own calls Python.
SETTINGS = {"debug": "eos", "log_level": 7, "log.queue": True, "statistics.interval.ms": 1000}
_ACQUIRED = re.compile(rb"Acquired PID\{Id:(\d+),Epoch:(\d+)\}")


class Identity:
    """Listens to one producer. Everything else in its log is dropped."""

    def __init__(self) -> None:
        # The callbacks must live as long as the producer.
        self._on_log, self._on_statistics = LOG(self._log), STATISTICS(self._statistics)
        self._told: tuple[int, int] | None = None
        self._latest = b""

    def listen(self, library: ctypes.CDLL, conf: Any) -> None:
        """Before the producer is made."""
        library.rd_kafka_conf_set_log_cb(conf, self._on_log)
        library.rd_kafka_conf_set_stats_cb(conf, self._on_statistics)

    @property
    def known(self) -> tuple[int, int] | None:
        """(producer id, epoch), as far as librdkafka was polled; None before Kafka has given them."""
        if self._told is None and self._latest:
            eos = json.loads(self._latest).get("eos", {})
            if eos.get("producer_id", -1) >= 0:
                return int(eos["producer_id"]), int(eos["producer_epoch"])
        return self._told

    def _log(self, _rk: int, _level: int, _facility: bytes, line: bytes) -> None:
        found = _ACQUIRED.search(line)
        if found is not None:
            self._told = int(found[1]), int(found[2])

    def _statistics(self, _rk: int, text: int, length: int, _opaque: int) -> int:
        # Kept as it is: only the last one is read, and with many partitions they are large.
        self._latest = ctypes.string_at(text, length)
        return 0
