"""Transactions as the driver sees them: end those of other processes, list, describe.

librdkafka can end only its own transactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.kafka.client.wire import MOVING, TRANSACTION, Connection, NotYetError
from holdfast.errors import ConfigError, SinkError

ONGOING = "Ongoing"
#: decided by Kafka, its markers are being written
COMMITTING = "PrepareCommit"
#: where coordinators keep their transactions
STATE_TOPIC = "__transaction_state"
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
    """A connection to the transaction coordinators; threads may share it."""

    def require_transactions(self) -> None:
        """Refuse brokers that cannot end a transaction of another process safely: older than version 4."""
        known = self._manager.broker_version_data
        if known is not None and known.api_versions.get(END_TXN, (0, 0))[1] < END_TXN_VERSION:
            raise ConfigError(
                f"Kafka at {self._config['bootstrap.servers']} is older than version 4: use mode='write-ahead' or "
                "upgrade the brokers"
            )

    def end(self, refs: Sequence[TransactionRef], *, commit: bool) -> list[int]:
        """Commit or abort each; Kafka's error code for each, 0 for done. Sent at once, answered together.

        Those whose coordinator moves or does not answer are sent again, the others are not. A code of MOVING is left
        when that took too long.
        """
        from kafka.errors import KafkaError

        codes: dict[int, int] = {}

        async def run() -> None:
            left = [n for n in range(len(refs)) if codes.get(n, MOVING[0]) in MOVING]
            nodes = await self.coordinators(TRANSACTION, [refs[n].transactional_id for n in left])
            problems: list[Exception] = []
            for start in range(0, len(left), IN_FLIGHT):
                sent = [(n, self._end(refs[n], nodes, commit=commit)) for n in left[start : start + IN_FLIGHT]]
                for n, future in sent:
                    try:
                        codes[n] = (await future).error_code
                    except KafkaError as error:
                        # The others' answers count all the same.
                        problems.append(error)
            if problems:
                raise problems[0]
            if any(code in MOVING for code in codes.values()):
                raise NotYetError("a transaction's coordinator is moving or loading; try again")

        if refs:
            try:
                self.run(run)
            except SinkError:
                if len(codes) < len(refs):
                    raise
        return [codes[n] for n in range(len(refs))]

    def _end(self, ref: TransactionRef, nodes: Mapping[str, int], *, commit: bool) -> Any:
        from kafka.protocol.producer.transaction import EndTxnRequest

        # Version 5 fences a zombie that writes to one more partition after the commit; version 3 does not.
        request = EndTxnRequest(ref.transactional_id, ref.producer_id, ref.epoch, commit, min_version=END_TXN_VERSION)
        return self.send(request, nodes[ref.transactional_id])

    def ongoing(self, prefix: str) -> list[OpenTransaction]:
        """Every transaction that is open under an id that begins with the prefix, on any coordinator."""
        return [t for t in self.describe(self.named(prefix)) if t.state == ONGOING]

    def named(self, prefix: str, state: str = ONGOING) -> list[str]:
        """The transactional ids with this prefix whose transactions are in this state."""
        from kafka.protocol.admin.transactions import ListTransactionsRequest

        async def run() -> list[str]:
            found: list[str] = []
            alive = await self.brokers(STATE_TOPIC)
            asked = [self.send(ListTransactionsRequest([state], [], -1, None, max_version=1), b) for b in alive]
            for future in asked:
                answer = await future
                if answer.error_code in MOVING:
                    raise NotYetError("a broker is still loading its transactions; try again")
                if answer.error_code:
                    raise SinkError(f"{self._where} cannot list transactions: error {answer.error_code}; try again")
                found += [s.transactional_id for s in answer.transaction_states]
            return [name for name in dict.fromkeys(found) if name.startswith(prefix)]

        return self.run(run)

    def describe(self, ids: Sequence[str]) -> list[OpenTransaction]:
        """What the coordinators know of these ids; unknown ones are left out."""
        from kafka.protocol.admin.transactions import DescribeTransactionsRequest

        if not ids:
            return []

        async def run() -> list[Any]:
            nodes = await self.coordinators(TRANSACTION, ids)
            asked = [
                self.send(DescribeTransactionsRequest([name for name in ids if nodes[name] == node]), node)
                for node in sorted(set(nodes.values()))
            ]
            states = [state for future in asked for state in (await future).transaction_states]
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
