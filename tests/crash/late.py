"""Tasks that pause before they pre-commit, and go on when the rest of the world has forgotten them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.core import faults

#: the task that pauses leaves its process id in the first file, and in the second how it ended: prepared or refused
BEGIN, END = "begin", "begin-end"
#: of the one that pauses it, and of the one that tells
NAMES = ("before", "behind")


def sleep_once() -> None:
    """Pause one task of all until somebody continues it, out of reach of whoever ends its executor."""
    try:
        with Path(os.environ[faults.ONCE], BEGIN).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    os.setsid()
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


class Sleepy(hf.TwoPhaseCommitSink):
    """Takes no row. Before all other sinks it pauses one task; behind them it tells how that one ended."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def begin(self, task: Any) -> None:
        """See TwoPhaseCommitSink."""

    def write(self, txn: Any, batch: Any) -> None:
        """See TwoPhaseCommitSink."""

    def pre_commit(self, txn: Any) -> None:
        """Nothing is to be committed."""
        if self.name == NAMES[0]:
            sleep_once()
        else:
            self._end("prepared")

    def abort(self, txn: Any) -> None:
        """See TwoPhaseCommitSink."""
        self._end("refused")

    def _end(self, how: str) -> None:
        folder = Path(os.environ[faults.ONCE])
        if (folder / BEGIN).read_text() == str(os.getpid()):
            (folder / END).write_text(how)

    def commit(self, checkpoint_id: int, committables: Any, tasks: Any) -> None:
        """See TwoPhaseCommitSink."""

    def recover(self, pipeline: str, generation: int, decided: Any) -> None:
        """See TwoPhaseCommitSink."""


def around(sinks: list[Any]) -> list[Any]:
    """The sinks, and one that pauses before them."""
    before, behind = map(Sleepy, NAMES)
    return [before, *sinks, behind]
