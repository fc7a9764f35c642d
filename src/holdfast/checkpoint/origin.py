"""Where a lineage began: in a savepoint of another one (S5, rule 10).

`origin.json` is written once, by whoever makes the new checkpoint location. The first start compares it with what the
endpoints' ledgers say of the old lineage: where a sink has more than the savepoint, rows that the new lineage reads
again are there already. What then happens was chosen when the location was made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from holdfast.checkpoint import records
from holdfast.checkpoint.history import checkpoints
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.storage import Storage
from holdfast.core.model import CheckpointId
from holdfast.core.recovery import plan_recovery
from holdfast.core.repair import Replayed, total
from holdfast.errors import ForeignLineageError, SavepointError, StaleCheckpointError

NAME = "origin.json"


class Ahead(StrEnum):
    """What to do about rows that sinks have already."""

    REFUSE = "refuse"
    REDELIVER = "redeliver"
    SKIP = "skip"


@dataclass(frozen=True)
class Further:
    """What one sink has got after a checkpoint."""

    #: the last checkpoint with rows that it has
    mark: CheckpointId
    checkpoints: int
    rows: int
    #: of all these rows together, order-free; None when the sink keeps none
    digest: str | None = None


@dataclass(frozen=True)
class Origin:
    """What a new lineage goes on from."""

    pipeline: str
    lineage: str
    checkpoint_id: CheckpointId
    #: the savepoint, or the location itself when it was rewound
    source: str
    ahead: Ahead = Ahead.REFUSE
    #: sink -> what it has beyond; empty when nobody could say
    further: Mapping[str, Further] = field(default_factory=dict)

    def write(self, storage: Storage) -> None:
        """Leave it in the log of the new location."""
        storage.replace(NAME, records.encode("origin", records.new_nonce(), asdict(self)))

    def check(self, sink: str, error: ForeignLineageError) -> None:
        """A sink's ledger is not ours: raise unless it is that of the origin, and holds no more than was agreed on."""
        if not error.ledger or set(error.ledger) != {self.lineage}:
            raise error
        mark, known = error.ledger[self.lineage], self.further.get(sink)
        agreed = self.checkpoint_id if self.ahead is not Ahead.SKIP or known is None else known.mark
        if mark <= agreed or self.ahead is Ahead.REDELIVER:
            return
        beyond = mark - self.checkpoint_id
        rows = f" ({known.rows:,} rows)" if known is not None and known.mark == mark else ""
        raise StaleCheckpointError(
            f"sink {sink!r} has deliveries up to checkpoint {mark} of the pipeline that {self.source} was taken of, "
            f"which is {beyond} checkpoints{rows} more than the {self.checkpoint_id} that this one goes on from"
            f"{'' if self.ahead is Ahead.REFUSE else ', and more than was agreed on'}. Make the location again by "
            "`holdfast savepoint start-from`, with --ahead redeliver (rows are delivered again from there on) or "
            "--ahead skip (if the replay proves equal), or with --name for a pipeline of its own"
        )

    def proof(self, names: Collection[str]) -> Mapping[str, Further]:
        """What the replay has to be equal to, for each sink of the run."""
        strange = set(names) ^ set(self.further)
        if strange:
            raise StaleCheckpointError(
                f"what sinks have already is skipped, and sink {min(strange)!r} is new or gone since then: start with "
                f"the same sinks ({', '.join(sorted(self.further))}) once, then change them"
            )
        return self.further


def read_origin(storage: Storage) -> Origin | None:
    """Where the lineage of this log began; None when it began with nothing."""
    try:
        body = records.decode(storage.read(NAME), f"{storage.url}/{NAME}", "origin")
    except FileNotFoundError:
        return None
    try:
        further = {sink: Further(**told) for sink, told in body["further"].items()}
        return Origin(
            str(body["pipeline"]),
            str(body["lineage"]),
            int(body["checkpoint_id"]),
            str(body["source"]),
            Ahead(body["ahead"]),
            further,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise records.damaged(f"{storage.url}/{NAME}", f"a field is missing or wrong ({error})") from error


def further_than(log: CheckpointLog, location: str, checkpoint_id: CheckpointId) -> dict[str, Further]:
    """What each sink of a loaded log has got after a checkpoint, from its records and, where pruned, its history."""
    marks: dict[str, CheckpointId] = {}
    counts: dict[str, list[int]] = {}
    digests: dict[str, list[tuple[int, str | None]]] = {}
    decided = log.facts.decided
    for stats in checkpoints(location):
        number = stats.checkpoint_id
        if number <= checkpoint_id or number > (-1 if log.last_decided is None else log.last_decided):
            continue
        for sink, told in stats.sinks.items():
            rows = int(told.get("rows", 0))
            counts.setdefault(sink, []).append(rows)
            marks[sink] = number if rows else marks.get(sink, checkpoint_id)
            parts = [(c.rows, c.digest) for c in decided[number].of(sink)] if number in decided else [(rows, None)]
            digests.setdefault(sink, []).extend(parts)
    found: dict[str, Further] = {}
    if not any(map(any, counts.values())):
        return found
    for sink, rows_of in counts.items():
        whole = total(digests[sink])
        text = None if whole is None or whole[0] != sum(rows_of) else f"{whole[1]:016x}"
        found[sink] = Further(marks[sink], len(rows_of), sum(rows_of), text)
    return found


def check_provable(log: CheckpointLog, further: Mapping[str, Further]) -> None:
    """Raise unless a replay could show that it is equal to what sinks have."""
    owed = plan_recovery(log.facts)
    if owed:
        raise SavepointError(
            f"checkpoint {owed[0].checkpoint_id} is decided there and not delivered to sink {owed[0].sink!r} yet: let "
            "that pipeline finish first, or choose redeliver"
        )
    for sink, told in further.items():
        if told.digest is None and told.rows:
            raise SavepointError(
                f"sink {sink!r} keeps no digests of its rows, or some are pruned: nothing can prove that a replay is "
                "equal to what it has. Kafka sinks in two-phase mode keep them. Choose redeliver or refuse"
            )


def is_equal(expected: Further, replay: Sequence[Replayed]) -> bool:
    """Whether the replay of a sink's rows is what the sink has."""
    whole = total([(part.rows, part.digest) for part in replay])
    digest = 0 if expected.digest is None else int(expected.digest, 16)
    return whole == (expected.rows, digest)
