"""Transactions as the driver sees them: end those of other processes, list, describe, read marks.

librdkafka can end only its own transactions, so this speaks the protocol through kafka-python's public classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from holdfast.connectors.kafka.client import admin
from holdfast.errors import HoldfastError, MissingExtraError

TIMEOUT_MS = 30_000
ONGOING = "Ongoing"


@dataclass(frozen=True)
class TransactionRef:
    """One transaction, wholly: the same id may have been used again since."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True)
class OpenTransaction:
    """What the broker says about a transactional id."""

    ref: TransactionRef
    state: str
    timeout_ms: int
    started_ms: int
    partitions: tuple[tuple[str, int], ...]


class TransactionClient:
    """A connection to the transaction coordinators; not shared between threads."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        try:
            from kafka.net.manager import KafkaConnectionManager
            from kafka.net.selector import NetworkSelector
        except ImportError as error:
            raise MissingExtraError("Kafka needs more packages: pip install 'holdfast[kafka]'") from error
        self._config = config
        settings = _python_settings(config)
        net = NetworkSelector()
        self._manager = KafkaConnectionManager(net, max_in_flight_requests_per_connection=1000, **settings)
        self._net = net
        self._manager.bootstrap(timeout_ms=TIMEOUT_MS)

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

    def end(self, refs: Sequence[TransactionRef], *, commit: bool) -> list[int]:
        """Commit or abort each; Kafka's error code for each, 0 for done. Sent at once, answered together."""
        from kafka.protocol.producer.transaction import EndTxnRequest

        if not refs:
            return []

        async def run() -> list[int]:
            nodes = await self._coordinators([ref.transactional_id for ref in refs])
            # Version 5 fences a zombie that writes to one more partition after the commit; version 3 does not.
            futures = [
                self._manager.send(
                    EndTxnRequest(ref.transactional_id, ref.producer_id, ref.epoch, commit, min_version=5),
                    node_id=nodes[ref.transactional_id],
                    request_timeout_ms=TIMEOUT_MS,
                )
                for ref in refs
            ]
            return [(await future).error_code for future in futures]

        return list(self._manager.run(run))

    def ongoing(self, prefix: str) -> list[OpenTransaction]:
        """Every transaction that is open under an id that begins with the prefix, on any coordinator."""
        from kafka.protocol.admin.transactions import ListTransactionsRequest

        async def run() -> list[str]:
            found: list[str] = []
            for broker in self._manager.cluster.brokers():
                request = ListTransactionsRequest([ONGOING], [], -1, None, max_version=1)
                answer = await self._manager.send(request, node_id=broker.node_id, request_timeout_ms=TIMEOUT_MS)
                if answer.error_code:
                    raise HoldfastError(f"Kafka cannot list transactions: error {answer.error_code}; try again")
                found += [s.transactional_id for s in answer.transaction_states]
            return [name for name in found if name.startswith(prefix)]

        return [t for t in self.describe(self._manager.run(run)) if t.state == ONGOING]

    def describe(self, ids: Sequence[str]) -> list[OpenTransaction]:
        """What the coordinators know of these ids; unknown ones are left out."""
        from kafka.protocol.admin.transactions import DescribeTransactionsRequest

        if not ids:
            return []

        async def run() -> list[Any]:
            nodes = await self._coordinators(ids)
            states: list[Any] = []
            for node in sorted(set(nodes.values())):
                mine = [name for name in ids if nodes[name] == node]
                request = DescribeTransactionsRequest(mine)
                answer = await self._manager.send(request, node_id=node, request_timeout_ms=TIMEOUT_MS)
                states += answer.transaction_states
            return states

        return [_open(state) for state in self._manager.run(run) if state.error_code == 0]

    async def _coordinators(self, ids: Sequence[str]) -> dict[str, int]:
        from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

        request = FindCoordinatorRequest(key_type=1, coordinator_keys=list(ids), min_version=4)
        answer = await self._manager.send(request, request_timeout_ms=TIMEOUT_MS)
        for coordinator in answer.coordinators:
            if coordinator.error_code:
                raise HoldfastError(
                    f"Kafka names no coordinator for transactional id {coordinator.key!r}: "
                    f"{coordinator.error_message or f'error {coordinator.error_code}'}"
                )
        return {c.key: c.node_id for c in answer.coordinators}

    def marks(self, groups: Sequence[str]) -> dict[str, int]:
        """{group: the offset it holds}; groups without one are left out. End what is open first, else this waits."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        client = admin(self._config)
        found: dict[str, int] = {}
        for group in groups:
            answer = client.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], require_stable=True, request_timeout=TIMEOUT_MS / 1000
            )[group].result()
            partitions = answer.topic_partitions or ()
            for partition in partitions:
                if partition.error is not None:  # no answer is not "no mark": that would be a lost transaction
                    raise HoldfastError(f"Kafka cannot read the mark of group {group!r}: {partition.error.str()}")
            offsets = [p.offset for p in partitions if p.offset >= 0]
            if offsets:
                found[group] = max(offsets)
        return found


def _open(state: Any) -> OpenTransaction:
    partitions = tuple((topic.topic, number) for topic in state.topics for number in topic.partitions)
    ref = TransactionRef(state.transactional_id, state.producer_id, state.producer_epoch)
    return OpenTransaction(
        ref, state.transaction_state, state.transaction_timeout_ms, state.transaction_start_time_ms, partitions
    )


#: librdkafka's names of settings -> kafka-python's
_PYTHON_NAMES = {
    "bootstrap.servers": "bootstrap_servers",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "client.id": "client_id",
}


def _python_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {_PYTHON_NAMES[key]: value for key, value in config.items() if key in _PYTHON_NAMES}
