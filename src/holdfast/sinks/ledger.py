"""Refusing to start against an endpoint that knows this name from elsewhere (rule 10)."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.checkpoint.ports import Run
from holdfast.core.model import CheckpointId
from holdfast.core.recovery import LedgerVerdict, judge_ledger
from holdfast.errors import ForeignLineageError, StaleCheckpointError

WAYS_OUT = (
    "Start from the checkpoint location that wrote it, or give this pipeline a new name, or pass take_over=True to "
    "write_stream: then this location owns the name, and rows that the other one delivered may be delivered again"
)


def check_ledger(run: Run, where: str, ledger: Mapping[str, CheckpointId]) -> None:
    """Raise unless the ledger {lineage: last committed checkpoint} is ours and not ahead of the log."""
    verdict = judge_ledger(ledger, run.lineage, run.last_decided)
    if verdict is LedgerVerdict.FOREIGN:
        last = max(checkpoint for lineage, checkpoint in ledger.items() if lineage != run.lineage)
        raise ForeignLineageError(
            f"{where} holds deliveries of a pipeline named {run.pipeline!r} up to checkpoint {last}, made from another "
            f"checkpoint location than {run.location} (or from this one before it was deleted). {WAYS_OUT}"
        )
    if verdict is LedgerVerdict.AHEAD:
        known = "none" if run.last_decided is None else f"{run.last_decided}"
        raise StaleCheckpointError(
            f"{where} holds deliveries of pipeline {run.pipeline!r} up to checkpoint {ledger[run.lineage]}, but the "
            f"checkpoint location {run.location} knows checkpoints up to {known}: it is an old copy. {WAYS_OUT}"
        )
