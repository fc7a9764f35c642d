"""Refusing to start against an endpoint that knows this name from elsewhere, or forgot it (rules 10, 15)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from holdfast.checkpoint.ports import Committed, Run
from holdfast.core.model import CheckpointId
from holdfast.core.recovery import LedgerVerdict, judge_ledger
from holdfast.errors import ForeignLineageError, RestoredEndpointError, StaleCheckpointError

#: Spark's word for mode "ledger", taken by every sink that has it
APPEND = "append"
WAYS_OUT = (
    "Start from the checkpoint location that wrote it, or give this pipeline a new name, or pass take_over=True to "
    "write_stream: then this location owns the name, and rows that the other one delivered may be delivered again"
)


def check_ledger(
    run: Run, where: str, ledger: Mapping[str, CheckpointId], *, sink: str | None = None, kept: float | None = None
) -> None:
    """Raise unless the ledger {lineage: last committed checkpoint} is ours, not ahead of the log and not behind it.

    With `sink`, what commit records say of it must be in the ledger (rule 15); a ledger that forgets after `kept`
    seconds need not know older ones.
    """
    known = run.committed.get(sink) if sink is not None else None
    if known is not None and kept is not None and time.time() - known.at / 1000 > kept:
        known = None
    committed = None if known is None else known.checkpoint_id
    verdict = judge_ledger(ledger, run.lineage, run.last_decided, committed)
    if verdict is LedgerVerdict.FOREIGN:
        last = max(checkpoint for lineage, checkpoint in ledger.items() if lineage != run.lineage)
        raise ForeignLineageError(
            f"{where} holds deliveries of a pipeline named {run.pipeline!r} up to checkpoint {last}, made from another "
            f"checkpoint location than {run.location} (or from this one before it was deleted). {WAYS_OUT}",
            ledger,
        )
    if verdict is LedgerVerdict.AHEAD:
        decided = "none" if run.last_decided is None else f"{run.last_decided}"
        raise StaleCheckpointError(
            f"{where} holds deliveries of pipeline {run.pipeline!r} up to checkpoint {ledger[run.lineage]}, but the "
            f"checkpoint location {run.location} knows checkpoints up to {decided}: it is an old copy. {WAYS_OUT}"
        )
    if verdict is LedgerVerdict.BEHIND:
        last, location = ledger.get(run.lineage, -1), run.location.removesuffix("/holdfast")
        knows = f"up to checkpoint {last}" if last >= 0 else "none"
        raise RestoredEndpointError(
            f"{where} knows of deliveries of pipeline {run.pipeline!r}: {knows}; but checkpoints {last + 1} to "
            f"{committed} were committed there. It was restored from a backup, failed over to an older copy, was "
            "emptied or made anew, and the rows of these checkpoints are missing. Bring the newer state back; or put "
            f"there what is missing, then run `holdfast resolve {location} --sink {sink} --accept-restored`, which "
            f"asks first: the pipeline goes on after checkpoint {committed}",
            behind=(last + 1, committed or 0),
        )


def having(run: Run, sink: str, ledger: Mapping[str, CheckpointId], known: CheckpointId, at: int = 0) -> Run:
    """The run as `check_ledger` takes it in the middle of one that knows `known` to be in the sink's ledger.

    An endpoint can come back as an older copy at any time. `at`: since when, for a ledger that forgets.
    """
    decided = max(run.last_decided or 0, known, ledger.get(run.lineage, 0))
    return replace(run, committed={sink: Committed(known, at)} if known >= 0 else {}, last_decided=decided)


def check_subtasks(run: Run, where: str, sink: str, is_committed: Callable[[int, CheckpointId], bool]) -> None:
    """Raise unless every subtask's rows that commit records say are committed are marked, too (rule 15).

    The newest mark of all alone does not tell: a backup taken in the middle of a checkpoint has it, for one subtask.
    """
    known = run.committed.get(sink)
    if known is None:
        return
    missing = {subtask: last for subtask, last in sorted(known.subtasks.items()) if not is_committed(subtask, last)}
    if not missing:
        return
    which = ", ".join(f"{last} of subtask {subtask}" for subtask, last in list(missing.items())[:10])
    more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
    location = run.location.removesuffix("/holdfast")
    raise RestoredEndpointError(
        f"{where} lacks marks of pipeline {run.pipeline!r} for checkpoint {which}{more}; but these were committed "
        "there, and marks of others are there. It was restored from a backup that was taken in the middle of a "
        "checkpoint, or part of it was deleted, and rows of these checkpoints may be missing. Bring the newer state "
        f"back; or put there what is missing, then run `holdfast resolve {location} --sink {sink} --accept-restored`, "
        f"which asks first: the pipeline goes on after checkpoint {known.checkpoint_id}",
        behind=(min(missing.values()), known.checkpoint_id),
    )
