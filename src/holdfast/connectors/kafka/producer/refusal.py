"""What Kafka or its client refused: the rows' fault, the settings' fault, or worth another try."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError, HoldfastError, RowError, SinkError

#: What no waiting mends: error codes, and what to do. Of Kafka's own (positive) and of librdkafka's (negative).
_ROWS = {
    10: "make the rows smaller, or raise message.max.bytes in config and max.message.bytes of the topic",
    87: "the topic is compacted and takes no row without a key, or the row breaks another of its rules",
}
_SETTINGS = {
    50: "lower transaction.timeout.ms in config, or raise transaction.max.timeout.ms of the brokers",
    35: "upgrade the brokers",
    -165: "upgrade the brokers",
    -169: "check security.protocol, sasl.* and ssl.*",
    -181: "check security.protocol, sasl.* and ssl.*",
}


class ProduceError(SinkError):
    """Kafka did not take a row or a transaction; trying again may help."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Comes back from an executor as it was."""
        return type(self), (str(self), self.code)


def refusal(code: int, text: str) -> HoldfastError:
    """The error for a code of Kafka or librdkafka: about the rows, about the settings, or worth another try."""
    if code in _ROWS:
        return RowError(f"{text}: {_ROWS[code]}")
    if code in _SETTINGS:
        return ConfigError(f"{text}: {_SETTINGS[code]}")
    return ProduceError(f"{text}. Trying again may help; check that the brokers run and can be reached", code)
