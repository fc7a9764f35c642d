"""Ending one open transaction by hand: what it would mean, when it is refused, and doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import CommitError

if TYPE_CHECKING:  # it loads pyarrow, and the command line starts without
    from holdfast.connectors.kafka.sink.inspect import PipelineTransactions, Seen

ABORTED, NOT_OPEN = "aborted", "not open"


def refusal(location: str, seen: Seen) -> str:
    """Why it is not ended, and what to do instead."""
    whole = f"{seen.transactional_id} (producer {seen.producer_id}, epoch {seen.epoch})"
    return {
        "undecided": f"{whole} is not decided: no checkpoint names it, and its rows are or were produced by another "
        "transaction. Committing it would double them",
        "publishing": f"{whole} belongs to a write-ahead sink: its rows are in the log, and the query publishes them "
        "itself. Half of them may be in it, so only an abort is safe",
        "foreign": f"{whole} was opened from another checkpoint location, and only the log there says whether it is "
        "decided: use that location, or wait for its timeout",
        "committed": f"{whole} is decided and committed: there is nothing to abort",
        "not open": f"{whole} is not open, and no decided checkpoint names it",
        "lost": f"{whole} is decided and lost: Kafka dropped it before its commit, and {seen.rows} rows of checkpoint "
        f"{seen.checkpoint_id} are not in the topic. {_ways_out(location)}",
        "too old to tell": f"{whole} is decided and not open, and so old that brokers may have forgotten whether it "
        f"was committed: look for the rows of checkpoint {seen.checkpoint_id}. {_ways_out(location)}",
    }[seen.verdict.value]


def _ways_out(location: str) -> str:
    return (
        f"Start the query: it produces them again from the replay; if it cannot, `holdfast resolve {location}` shows "
        "the ways out"
    )


def refuse_abort(location: str, seen: Seen) -> None:
    """CommitError unless no decided checkpoint names it."""
    if seen.verdict == "decided":
        raise CommitError(
            f"{seen.transactional_id} is decided: it holds {seen.rows:,} rows of checkpoint {seen.checkpoint_id}, and "
            "aborting it would lose them. The query commits it at its next start, or `holdfast transactions commit` now"
        )
    if seen.verdict not in ("undecided", "publishing"):
        raise CommitError(refusal(location, seen))


def abort_means(found: PipelineTransactions, seen: Seen) -> str:
    """What an abort would do, as a sentence."""
    owner = found.owner
    alive = owner is not None and owner.alive is not False
    if seen.verdict == "publishing":
        return f"{seen.transactional_id} is aborted; its rows are in the log, and the query publishes them again"
    if owner is not None and alive and seen.generation == owner.generation % 256:
        return (
            f"{seen.transactional_id} is aborted. It seems to be of the driver that runs as process {owner.pid} on "
            f"{owner.host}: if its batch is not decided yet it fails, and is run again"
        )
    return f"{seen.transactional_id} is aborted; no decided checkpoint names it, so no row is lost"


def abort(found: PipelineTransactions, seen: Seen) -> str:
    """Abort it, unless it was decided meanwhile; how it ended."""
    found.read()  # a running query may have decided it meanwhile
    if found.judge(seen) == "decided":
        raise CommitError(f"{seen.transactional_id} was decided meanwhile: nothing was aborted")
    aborted = found.end(seen, commit=False)
    found.read()
    if aborted and found.judge(seen) == "decided":
        raise CommitError(
            f"{seen.transactional_id} was aborted, and decided in the same moment: the query finds it lost and "
            "produces its rows again"
        )
    return ABORTED if aborted else NOT_OPEN
