"""A connection that speaks Kafka's protocol through kafka-python's public classes, for what librdkafka cannot do."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from holdfast.connectors.kafka.denied import denied
from holdfast.connectors.kafka.login import connect
from holdfast.connectors.kafka.security import python_settings
from holdfast.errors import ConfigError, HoldfastError, MissingExtraError

Answer = TypeVar("Answer")
TIMEOUT_MS = 30_000
#: the coordinator is loading, moving, or not elected yet: ask again
MOVING = (14, 15, 16)
GROUP, TRANSACTION = 0, 1
_KINDS = {GROUP: "group", TRANSACTION: "transactional id"}


class NotYetError(HoldfastError):
    """A coordinator is not ready; the same request may succeed in a moment."""


class Connection:
    """To all brokers of a cluster; not shared between threads."""

    def __init__(self, config: Mapping[str, Any], *, rights: str = "Read") -> None:
        """`rights` are those a refusal to read a group's offsets asks for."""
        self._rights = rights
        try:
            from kafka.net.manager import KafkaConnectionManager
            from kafka.net.selector import NetworkSelector
        except ImportError as error:
            raise MissingExtraError("Kafka needs more packages: pip install 'holdfast[kafka]'") from error
        self._config = config
        settings = python_settings(config)
        net = NetworkSelector()
        self._manager = KafkaConnectionManager(net, max_in_flight_requests_per_connection=1000, **settings)
        self._net = net
        try:
            connect(self._manager, config, timeout_ms=TIMEOUT_MS)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect."""
        self._manager.close()
        self._net.close()

    def __del__(self) -> None:
        """A query that died without closing its sinks leaves no sockets behind."""
        if hasattr(self, "_net"):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, function: Callable[[], Awaitable[Answer]], *, timeout: float = TIMEOUT_MS / 1000) -> Answer:
        """Run a conversation to its end, again and again while a coordinator is not ready: so it must be repeatable."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                answer: Answer = self._manager.run(function)
            except NotYetError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return answer

    def send(self, request: Any, node: int | None = None) -> Any:
        """Send a request, to one broker or to any; await the answer."""
        return self._manager.send(request, node_id=node, request_timeout_ms=TIMEOUT_MS)

    @property
    def brokers(self) -> list[int]:
        """The numbers of all brokers."""
        return [broker.node_id for broker in self._manager.cluster.brokers()]

    async def coordinators(self, kind: int, keys: Sequence[str]) -> dict[str, int]:
        """{group or transactional id: the broker that coordinates it}."""
        from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys), min_version=4)
        answer = await self.send(request)
        for found in answer.coordinators:
            if found.error_code in MOVING:
                raise NotYetError(f"Kafka has no coordinator yet for {_KINDS[kind]} {found.key!r}; try again")
            if found.error_code:
                raise self.refused(kind, found.error_code, found.key) or HoldfastError(
                    f"Kafka names no coordinator for {_KINDS[kind]} {found.key!r}: "
                    f"{found.error_message or f'error {found.error_code}'}"
                )
        return {c.key: c.node_id for c in answer.coordinators}

    def refused(self, kind: int, code: int, key: str) -> ConfigError | None:
        """The error for a missing right, None for any other code."""
        if kind == GROUP:
            return denied(code, "read the offsets of a group", self._config, rights=self._rights, group=key)
        return denied(code, "find or describe a transaction", self._config, transactional_id=key)
