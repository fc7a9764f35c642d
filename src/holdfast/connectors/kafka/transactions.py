"""Transactions as the driver sees them: end those of other processes, list, describe, read marks.

librdkafka can end only its own transactions, so this speaks the protocol through kafka-python's public classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from holdfast.connectors.kafka.denied import denied
from holdfast.connectors.kafka.login import connect
from holdfast.connectors.kafka.security import python_settings
from holdfast.errors import ConfigError, HoldfastError, MissingExtraError

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
            for state in states:  # "may not see it" is not "there is none"
                refused = self._denied(state.error_code, state.transactional_id)
                if refused is not None:
                    raise refused
            return states

        return [_open(state) for state in self._manager.run(run) if state.error_code == 0]

    async def _coordinators(self, ids: Sequence[str]) -> dict[str, int]:
        from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

        request = FindCoordinatorRequest(key_type=1, coordinator_keys=list(ids), min_version=4)
        answer = await self._manager.send(request, request_timeout_ms=TIMEOUT_MS)
        for coordinator in answer.coordinators:
            if coordinator.error_code:
                raise self._denied(coordinator.error_code, coordinator.key) or HoldfastError(
                    f"Kafka names no coordinator for transactional id {coordinator.key!r}: "
                    f"{coordinator.error_message or f'error {coordinator.error_code}'}"
                )
        return {c.key: c.node_id for c in answer.coordinators}

    def _denied(self, code: int, transactional_id: str) -> ConfigError | None:
        return denied(code, "find or describe a transaction", self._config, transactional_id=transactional_id)


def _open(state: Any) -> OpenTransaction:
    partitions = tuple((topic.topic, number) for topic in state.topics for number in topic.partitions)
    ref = TransactionRef(state.transactional_id, state.producer_id, state.producer_epoch)
    return OpenTransaction(
        ref, state.transaction_state, state.transaction_timeout_ms, state.transaction_start_time_ms, partitions
    )
