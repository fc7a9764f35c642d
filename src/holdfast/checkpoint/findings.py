"""What stopped a query after a decision, kept for the operator in `lost/<checkpoint>.<sink>.json` (D4).

A finding decides nothing: `holdfast status` shows it, `holdfast resolve` is the way out, and a start that gets past it
makes it void.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from holdfast.checkpoint import records
from holdfast.checkpoint.log import CheckpointLog
from holdfast.core.model import CheckpointId
from holdfast.core.naming import escape
from holdfast.core.recovery import OwedCommit
from holdfast.core.repair import Replayed
from holdfast.errors import FencedError, HoldfastError, LostError


def finding_name(checkpoint_id: CheckpointId, sink: str) -> str:
    """Where the finding is kept."""
    return f"lost/{checkpoint_id}.{escape(sink)}.json"


def record_finding(
    log: CheckpointLog,
    action: OwedCommit,
    error: HoldfastError,
    *,
    lost: Collection[Any] = (),
    replay: Sequence[Replayed] = (),
) -> None:
    """Keep why this checkpoint cannot be committed; `lost` are the committables it is about, default: all."""
    if isinstance(error, FencedError):
        return  # another driver has this checkpoint now
    mine = log.facts.decided[action.checkpoint_id].of(action.sink)
    about = [c for c in mine if c.data in lost] or list(mine)
    body = {
        "checkpoint_id": action.checkpoint_id,
        "sink": action.sink,
        "certain": isinstance(error, LostError) and error.certain and bool(lost),
        "lost": [{"subtask": c.subtask, "rows": c.rows, "digest": c.digest, "data": c.data} for c in about],
        "replay": [asdict(r) for r in replay],
        "problem": str(error),
        "error": type(error).__name__,
        "action": error.action,
        "at": int(time.time() * 1000),
    }
    data = records.encode("lost", records.new_nonce(), body)
    log.storage.replace(finding_name(action.checkpoint_id, action.sink), data)
