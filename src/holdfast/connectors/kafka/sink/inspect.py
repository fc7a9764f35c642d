"""The transactions of one pipeline, as an operator sees them: what the brokers have open beside what the log decided.

Reads the log's files and claims no generation, so it works while the query runs and when it is dead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from holdfast.checkpoint.reader import LogReader
from holdfast.checkpoint.status import require_used
from holdfast.connectors.kafka.client.denied import denied
from holdfast.connectors.kafka.client.retention import marks_last
from holdfast.connectors.kafka.client.stable import stable_offsets
from holdfast.connectors.kafka.client.transactions import (
    ONGOING,
    OpenTransaction,
    TransactionClient,
    TransactionRef,
)
from holdfast.connectors.kafka.sink import ids, marks
from holdfast.connectors.kafka.sink.two_phase import committed_by_mark, ref_of
from holdfast.core.model import CheckpointId
from holdfast.core.recovery import Facts, plan_recovery
from holdfast.errors import ConfigError, HoldfastError, RecordError

_CONCURRENT = 51
_NOT_OPEN = {47, 48, 49, 90}
UNKNOWN_STATE = "unknown to the brokers"


class Verdict(StrEnum):
    """What the log says about a transaction."""

    DECIDED = "decided"
    UNDECIDED = "undecided"
    #: a write-ahead sink sends rows that are safe in the log
    PUBLISHING = "publishing"
    #: its id names another checkpoint location, whose log is not here
    FOREIGN = "foreign"
    COMMITTED = "committed"
    LOST = "lost"
    #: decided so long ago that the brokers may have forgotten how it ended
    TOO_OLD = "too old to tell"
    NOT_OPEN = "not open"


@dataclass(frozen=True)
class Claim:
    """A transaction that a decided checkpoint names."""

    checkpoint_id: CheckpointId
    sink: str
    data: Mapping[str, Any]
    #: no commit is recorded yet
    owed: bool


@dataclass(frozen=True)
class Seen:
    """One transaction: the brokers' side and the log's."""

    transactional_id: str
    producer_id: int
    epoch: int
    state: str
    verdict: Verdict
    sink: str
    subtask: int
    #: modulo 256; None in write-ahead mode
    generation: int | None
    checkpoint_id: CheckpointId | None
    rows: int | None
    #: milliseconds since the epoch, by the brokers' clock; None when it is not open
    started: int | None
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...]
    servers: str

    @property
    def ref(self) -> TransactionRef:
        """The whole identity."""
        return TransactionRef(self.transactional_id, self.producer_id, self.epoch)

    @property
    def remaining_ms(self) -> int | None:
        """Until the brokers drop it; they look every 10 seconds."""
        return None if self.started is None else self.started + self.timeout_ms - int(time.time() * 1000)


def claims(facts: Facts) -> dict[TransactionRef, Claim]:
    """Every transaction named by a decided checkpoint, by its whole identity: an id may have been used again."""
    owed = {(action.checkpoint_id, action.sink) for action in plan_recovery(facts)}
    return {
        ref_of(c.data): Claim(number, c.sink, c.data, (number, c.sink) in owed)
        for number, decided in facts.decided.items()
        for c in decided.committables
        if isinstance(c.data, Mapping) and "transactional_id" in c.data
    }


class PipelineTransactions:
    """Looks at, and ends, the transactions of the pipeline at one checkpoint location."""

    def __init__(self, location: str, servers: str | None, config: Mapping[str, Any]) -> None:
        require_used(location)
        self._location, self._config = location, config
        self.read()
        recorded = sorted({c.data["servers"] for c in self.claims.values() if "servers" in c.data})
        self._given = servers
        self.servers = [servers] if servers else recorded
        self._only = servers if servers in recorded and len(recorded) > 1 else None
        if not self.servers:
            raise ConfigError(
                f"{location} does not say where the brokers are: no Kafka sink in two-phase mode has decided anything. "
                "Pass --bootstrap-servers"
            )
        self._open = ExitStack()
        self._clients: dict[str, TransactionClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def read(self) -> None:
        """Read the log anew."""
        log = LogReader(self._location)
        identity, self.owner = log.identity(), log.owner()
        log.load()
        if log.damaged:
            raise RecordError("; ".join(d.problem for d in log.damaged))
        self.pipeline, self.lineage = str(identity["pipeline"]), str(identity["lineage"])
        self.claims = claims(log.facts)

    # -- looking ----------------------------------------------------------------------------------------------------

    def open(self) -> list[Seen]:
        """Every open transaction of this pipeline's sinks, oldest first."""
        found = []
        for servers in self.servers:
            for prefix in ids.prefixes(self.pipeline):
                for transaction in self._client(servers).ongoing(prefix):
                    name = _parse(transaction.ref.transactional_id)
                    if name is not None:
                        found.append(self._seen(transaction, servers, name, self._verdict(transaction.ref, name)))
        return sorted(found, key=lambda s: (s.started or 0, s.transactional_id))

    def lost(self, open_now: Iterable[Seen]) -> list[Seen]:
        """What is decided, not open any more and not committed, by the marks."""
        there = {seen.ref for seen in open_now}
        missing = {ref: c for ref, c in self.claims.items() if c.owed and ref not in there and self._concerns(c)}
        found = [self._settle(claim) for _, claim in sorted(missing.items(), key=lambda m: m[1].checkpoint_id)]
        return [s for s in found if s.verdict in (Verdict.LOST, Verdict.TOO_OLD)]

    def one(self, transactional_id: str) -> Seen:
        """What is known of one id: what is open under it, else the last transaction the log names."""
        name = _parse(transactional_id)
        if name is None or name.pipeline != self.pipeline:
            raise ConfigError(f"{transactional_id!r} is not a transactional id of pipeline {self.pipeline!r}")
        described = [
            (t, servers) for servers in self.servers for t in self._client(servers).describe([transactional_id])
        ]
        for transaction, servers in described:
            if transaction.state == ONGOING:
                return self._seen(transaction, servers, name, self._verdict(transaction.ref, name))
        mine = [c for ref, c in self.claims.items() if ref.transactional_id == transactional_id]
        if mine:
            return self._settle(max(mine, key=lambda c: c.checkpoint_id))
        if not described:
            raise ConfigError(f"the brokers know no transactional id {transactional_id!r}: see `transactions list`")
        return self._seen(*described[0], name, Verdict.NOT_OPEN)

    def judge(self, seen: Seen) -> Verdict:
        """What the log, as last read, says about an open transaction."""
        name = _parse(seen.transactional_id)
        assert name is not None
        return self._verdict(seen.ref, name)

    def blocked(self, seen: Sequence[Seen]) -> dict[tuple[str, str, int], tuple[int, int]]:
        """{(servers, topic, partition): (last stable offset, end)} where read-committed consumers wait."""
        found = {}
        for servers in {s.servers for s in seen}:
            wanted = {p for s in seen if s.servers == servers for p in s.partitions if not p[0].startswith("__")}
            for (topic, number), (stable, end) in stable_offsets(self._settings(servers), sorted(wanted)).items():
                if stable < end:
                    found[servers, topic, number] = (stable, end)
        return found

    # -- ending -----------------------------------------------------------------------------------------------------

    def end(self, seen: Seen, *, commit: bool) -> bool:
        """Commit or abort just this transaction; False when it was not open any more."""
        client, deadline = self._client(seen.servers), time.monotonic() + 10
        code = client.end([seen.ref], commit=commit)[0]
        while code == _CONCURRENT and time.monotonic() < deadline:
            time.sleep(0.05)
            code = client.end([seen.ref], commit=commit)[0]
        refused = denied(code, "end a transaction", self._config, transactional_id=seen.transactional_id)
        if refused is not None:
            raise refused
        if code in _NOT_OPEN:
            return False
        if code:
            raise HoldfastError(f"Kafka answered error {code} to EndTxn for {seen.transactional_id!r}: try again")
        return True

    # -- inside -----------------------------------------------------------------------------------------------------

    def _client(self, servers: str) -> TransactionClient:
        if servers not in self._clients:
            self._clients[servers] = self._open.enter_context(TransactionClient(self._settings(servers)))
        return self._clients[servers]

    def _settings(self, servers: str) -> dict[str, Any]:
        return {**self._config, "bootstrap.servers": servers}

    def _concerns(self, claim: Claim) -> bool:
        """With brokers named by the user, what went to others cannot be found here and is not called lost."""
        return self._only is None or claim.data.get("servers") == self._only

    def _verdict(self, ref: TransactionRef, name: ids.KafkaId | ids.PublisherId) -> Verdict:
        if ref in self.claims:
            return Verdict.DECIDED
        if name.lineage != self.lineage[:12]:
            return Verdict.FOREIGN
        return Verdict.PUBLISHING if isinstance(name, ids.PublisherId) else Verdict.UNDECIDED

    def _seen(
        self, found: OpenTransaction, servers: str, name: ids.KafkaId | ids.PublisherId, verdict: Verdict
    ) -> Seen:
        claim = self.claims.get(found.ref)
        return Seen(
            transactional_id=found.ref.transactional_id,
            producer_id=found.ref.producer_id,
            epoch=found.ref.epoch,
            state=found.state,
            verdict=verdict,
            sink=name.sink,
            subtask=name.subtask,
            generation=name.generation if isinstance(name, ids.KafkaId) else None,
            checkpoint_id=None if claim is None else claim.checkpoint_id,
            rows=None if claim is None else claim.data["rows"],
            started=found.started_ms if found.state == ONGOING else None,
            timeout_ms=found.timeout_ms,
            partitions=found.partitions,
            servers=servers,
        )

    def _settle(self, claim: Claim) -> Seen:
        """How a decided transaction that is not open ended; its mark tells."""
        data = claim.data
        servers = self._given or data.get("servers") or self.servers[0]
        name = _parse(data["transactional_id"])
        assert isinstance(name, ids.KafkaId)
        described = self._client(servers).describe([data["transactional_id"]])
        state = described[0].state if described else UNKNOWN_STATE
        if not claim.owed or _being_committed(described, data) or self._marked(servers, claim):
            verdict = Verdict.COMMITTED
        else:
            verdict = (
                Verdict.TOO_OLD
                if time.time() - data["at"] / 1000 > marks_last(self._settings(servers))
                else Verdict.LOST
            )
        ref, what = ref_of(data), (claim.checkpoint_id, data["rows"])
        place = (claim.sink, data["subtask"], name.generation)
        return Seen(
            ref.transactional_id, ref.producer_id, ref.epoch, state, verdict, *place, *what, None, 0, (), servers
        )

    def _marked(self, servers: str, claim: Claim) -> bool:
        # Not "stable": what is open under the same id now is another transaction, and may stay so for long.
        group = claim.data["mark"]
        found = marks.read(self._settings(servers), [group], stable=False)[group]
        return committed_by_mark(claim.checkpoint_id, claim.data, found)


def _being_committed(described: Sequence[OpenTransaction], data: Mapping[str, Any]) -> bool:
    """The markers of this very transaction are being written; brokers count the epoch up when they begin."""
    return any(
        t.state == "PrepareCommit"
        and t.ref.producer_id == data["producer_id"]
        and t.ref.epoch - data["epoch"] in (0, 1)
        for t in described
    )


def _parse(transactional_id: str) -> ids.KafkaId | ids.PublisherId | None:
    return ids.parse(transactional_id) or ids.parse_publisher(transactional_id)
