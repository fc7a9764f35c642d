"""Transactions as the driver sees them: end those of other processes, list, describe.

librdkafka can end only its own transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.kafka.wire import MOVING, TRANSACTION, Connection, NotYetError
from holdfast.errors import ConfigError, HoldfastError

ONGOING = "Ongoing"
#: requests sent before the first is answered; a connection takes no more than twice as many
IN_FLIGHT = 500
END_TXN, END_TXN_VERSION = 26, 5


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


class TransactionClient(Connection):
    """A connection to the transaction coordinators; not shared between threads."""

    def require_transactions(self) -> None:
        """Refuse brokers that cannot end a transaction of another process safely: older than version 4."""
        known = self._manager.broker_version_data
        if known is not None and known.api_versions.get(END_TXN, (0, 0))[1] < END_TXN_VERSION:
            raise ConfigError(
                f"Kafka at {self._config['bootstrap.servers']} is older than version 4: use mode='write-ahead' or "
                "upgrade the brokers"
            )

    def end(self, refs: Sequence[TransactionRef], *, commit: bool) -> list[int]:
        """Commit or abort each; Kafka's error code for each, 0 for done. Sent at once, answered together."""
        from kafka.protocol.producer.transaction import EndTxnRequest

        if not refs:
            return []

        async def run() -> list[int]:
            nodes = await self.coordinators(TRANSACTION, [ref.transactional_id for ref in refs])
            # Version 5 fences a zombie that writes to one more partition after the commit; version 3 does not.
            codes: list[int] = []
            for start in range(0, len(refs), IN_FLIGHT):
                futures = [
                    self.send(
                        EndTxnRequest(
                            ref.transactional_id, ref.producer_id, ref.epoch, commit, min_version=END_TXN_VERSION
                        ),
                        nodes[ref.transactional_id],
                    )
                    for ref in refs[start : start + IN_FLIGHT]
                ]
                codes += [(await future).error_code for future in futures]
            return codes

        return list(self.run(run))

    def ongoing(self, prefix: str) -> list[OpenTransaction]:
        """Every transaction that is open under an id that begins with the prefix, on any coordinator."""
        from kafka.protocol.admin.transactions import ListTransactionsRequest

        async def run() -> list[str]:
            found: list[str] = []
            for broker in self.brokers:
                request = ListTransactionsRequest([ONGOING], [], -1, None, max_version=1)
                answer = await self.send(request, broker)
                if answer.error_code in MOVING:
                    raise NotYetError("a broker is still loading its transactions; try again")
                if answer.error_code:
                    raise HoldfastError(f"Kafka cannot list transactions: error {answer.error_code}; try again")
                found += [s.transactional_id for s in answer.transaction_states]
            return [name for name in found if name.startswith(prefix)]

        return [t for t in self.describe(self.run(run)) if t.state == ONGOING]

    def describe(self, ids: Sequence[str]) -> list[OpenTransaction]:
        """What the coordinators know of these ids; unknown ones are left out."""
        from kafka.protocol.admin.transactions import DescribeTransactionsRequest

        if not ids:
            return []

        async def run() -> list[Any]:
            nodes = await self.coordinators(TRANSACTION, ids)
            states: list[Any] = []
            for node in sorted(set(nodes.values())):
                mine = [name for name in ids if nodes[name] == node]
                request = DescribeTransactionsRequest(mine)
                answer = await self.send(request, node)
                states += answer.transaction_states
            for state in states:  # "may not see it" is not "there is none"
                refused = self.refused(TRANSACTION, state.error_code, state.transactional_id)
                if refused is not None:
                    raise refused
                if state.error_code in MOVING:
                    raise NotYetError("a broker is still loading its transactions; try again")
            return states

        return [_open(state) for state in self.run(run) if state.error_code == 0]


def _open(state: Any) -> OpenTransaction:
    partitions = tuple((topic.topic, number) for topic in state.topics for number in topic.partitions)
    ref = TransactionRef(state.transactional_id, state.producer_id, state.producer_epoch)
    return OpenTransaction(
        ref, state.transaction_state, state.transaction_timeout_ms, state.transaction_start_time_ms, partitions
    )
