"""Dead letters as the checkpoint location keeps them: `dead-letters/<checkpoint>-<file>.arrow`."""

from __future__ import annotations

from holdfast.core.model import CheckpointId

FOLDER = "dead-letters"


def kept_name(checkpoint_id: CheckpointId, handle: str) -> str:
    """Where the letters of a file of the log are kept."""
    return f"{FOLDER}/{checkpoint_id}-{handle.rpartition('/')[2]}"
