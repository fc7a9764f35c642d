"""The person who decides about a checkpoint that is stuck: who that is, what is asked first, when it is refused."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoint.resolve import consequence
from holdfast.checkpoint.runs import Owner
from holdfast.checkpoint.status import Status
from holdfast.checkpoint.stuck import Finding
from holdfast.errors import CheckpointInUseError


def refuse_running(found: Status) -> None:
    """Raise when a driver seems to be at work."""
    owner = found.owner
    # Our own number is that of a driver that is gone: in containers the first process often has the same.
    if owner is None or not owner.alive or (owner.pid == os.getpid() and owner.host == socket.gethostname()):
        return
    raise CheckpointInUseError(
        f"the pipeline {found.pipeline!r} seems to run in process {owner.pid} on {owner.host}, and delivers what it "
        "can by itself. Stop it first, so that nothing changes under your decision; or pass --fence: that process is "
        "then stopped at its next checkpoint"
    )


def elsewhere(owner: Owner | None) -> str:
    """What an order means for a driver of which nobody here can tell whether it lives."""
    if owner is None or owner.alive is not None:
        return ""
    return f". The last driver ran as process {owner.pid} on {owner.host}: if it still runs, it is stopped"


def question(meant: Sequence[Finding], how: str) -> str:
    """What is asked before an order is recorded."""
    if len(meant) == 1:
        return consequence(meant[0], how)
    rows = sum(f.rows for f in meant)
    first, last = meant[0], meant[-1]
    return (
        f"{len(meant)} checkpoints ({first.checkpoint_id} to {last.checkpoint_id}) of sink {first.sink!r}, {rows:,} "
        f"rows. For the first: {consequence(first, how)}"
    )


def who() -> dict[str, Any]:
    """By whom, where and when."""
    return {"by": _user(), "host": socket.gethostname(), "at": int(time.time() * 1000)}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without a name
        return f"uid {os.getuid()}"
