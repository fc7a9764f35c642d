"""Dead letters as the checkpoint location keeps them, and the orders to send them again.

Letters are in `dead-letters/<checkpoint>-<file>.arrow`. `dead-letters/orders/<n>` is the n-th order of an operator: it
names letters, and no letter is named by two, since orders are numbered without gaps and each is made by
create-if-absent, by someone who has read all before it. The next decision that carries one out says so in its operator
state, in the same record as the rows: so an order is carried out by one checkpoint or by none. `<n>.done` then
remembers by which, when the record is long gone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.checkpoint import records
from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import Run, Sink, SubtaskReport, Tasks
from holdfast.checkpoint.storage import Storage
from holdfast.core.model import CheckpointId

logger = logging.getLogger("holdfast")
FOLDER = "dead-letters"
ORDERS = f"{FOLDER}/orders"
#: the name of the sink that keeps letters, whose operator state says which orders are carried out
KEPT_BY = "holdfast-dead-letters"
_FILE = re.compile(r"(0|[1-9]\d*)-[^/]+\.arrow")


def kept_name(checkpoint_id: CheckpointId, handle: str) -> str:
    """Where the letters of a file of the log are kept."""
    return f"{FOLDER}/{checkpoint_id}-{handle.rpartition('/')[2]}"


def kept_files(storage: Storage) -> list[tuple[CheckpointId, str]]:
    """(checkpoint, file) of all that is kept, in order."""
    found = [(int(match[1]), name) for name in storage.names(FOLDER) if (match := _FILE.fullmatch(name))]
    return sorted(found)


@dataclass(frozen=True)
class Order:
    """Letters that an operator wants to be sent again."""

    number: int
    #: sink -> file -> the numbers of its letters
    letters: Mapping[str, Mapping[str, Sequence[int]]]
    who: Mapping[str, Any] = field(default_factory=dict)
    #: the checkpoint that carried it out; None while none has
    done: CheckpointId | None = None
    cancelled: bool = False

    @property
    def count(self) -> int:
        """How many letters."""
        return sum(len(numbers) for files in self.letters.values() for numbers in files.values())


def read_orders(storage: Storage) -> list[Order]:
    """Every order, the oldest first."""
    names = set(storage.names(ORDERS))
    found: list[Order] = []
    while (name := f"{len(found)}.json") in names:
        body = _read(storage, f"{ORDERS}/{name}", "replay")
        done = _read(storage, f"{ORDERS}/{name[:-5]}.done", "replayed") if f"{name[:-5]}.done" in names else {}
        number, by = len(found), done.get("checkpoint_id")
        found.append(Order(number, body["letters"], body["who"], by, cancelled=bool(done) and by is None))
    return found


def give_order(storage: Storage, order: Order) -> bool:
    """Record it; False when somebody else was faster: then his must be read first."""
    nonce = records.new_nonce()
    body = {"letters": {s: {f: list(n) for f, n in files.items()} for s, files in order.letters.items()}}
    document = records.encode("replay", nonce, {**body, "who": dict(order.who)})
    name = f"{ORDERS}/{order.number}.json"
    return storage.create(name, document) or _read(storage, name, "replay")["nonce"] == nonce


def finish_order(storage: Storage, number: int, checkpoint_id: CheckpointId | None) -> bool:
    """Remember which checkpoint carried an order out, None for one that is taken back; False when it had ended."""
    nonce = records.new_nonce()
    name = f"{ORDERS}/{number}.done"
    document = records.encode("replayed", nonce, {"checkpoint_id": checkpoint_id})
    return storage.create(name, document) or _read(storage, name, "replayed")["nonce"] == nonce


def _read(storage: Storage, name: str, kind: str) -> dict[str, Any]:
    return records.decode(storage.read(name), f"{storage.url}/{name}", kind)


class Keeper(Protocol):
    """The sink that keeps letters, as it is asked to write them anew."""

    def write_kept(
        self,
        run: Run,
        sinks: Sequence[Any],
        pieces: Sequence[Mapping[str, Any]],
        checkpoint_id: CheckpointId,
        timestamp: int,
        tasks: Tasks,
        *,
        letters: Letters | None = None,
        repair: int = 0,
    ) -> list[SubtaskReport]:
        """Each piece is a subtask: the rows of letters, or without `letters` the letters themselves, to the sinks."""


class Replays:
    """The orders that a run finds at its start, carried out with its next decision."""

    def __init__(self, log: CheckpointLog, sinks: Sequence[Sink], tasks: Tasks, letters: Letters | None) -> None:
        self._log, self._tasks, self._letters = log, tasks, letters
        self._sinks = {sink.name: sink for sink in sinks}
        self._open: list[Order] = []
        #: order -> the checkpoint whose decision carries it out, until `.done` remembers that
        self._decided: dict[int, CheckpointId] = {}
        self._doing: list[Order] = []

    def load(self) -> None:
        """Read them; one that a decided record has carried out is not open any more, whoever died over it."""
        log = self._log
        state = {} if log.last_decided is None else log.facts.decided[log.last_decided].state.get(KEPT_BY) or {}
        self._decided = {int(number): done for number, done in state.get("replayed", {}).items()}
        for number, done in self._decided.items():
            finish_order(log.storage, number, done)
        orders = [o for o in read_orders(log.storage) if o.done is None and not o.cancelled]
        self._open = [o for o in orders if o.number not in self._decided]
        if self._open and (self._letters is None or KEPT_BY not in self._sinks):
            logger.warning(
                "%d dead letters are ordered to be sent again, and wait: this pipeline has no dead_letters",
                sum(order.count for order in self._open),
            )
            self._open = []

    def write(
        self, run: Run, checkpoint_id: CheckpointId, timestamp: int, reports: Sequence[SubtaskReport]
    ) -> list[SubtaskReport]:
        """Write the letters' rows to their sinks, as further subtasks of this checkpoint; what they prepared."""
        self._doing = []
        if not self._open or self._letters is None:
            return []
        first, found = 1 + max((report.subtask for report in reports), default=-1), list[SubtaskReport]()
        taking = [self._sinks[name] for name in self._letters.sinks]
        keeper: Any = self._sinks[KEPT_BY]
        for order in self._open:
            left = sorted(set(order.letters) - set(self._sinks))
            if left:
                logger.warning(
                    "order %d to send dead letters again waits: sink %s is not in the pipeline", order.number, left[0]
                )
                continue
            for name, files in sorted(order.letters.items()):
                piece = {"subtask": first + len(found), "files": {f: list(n) for f, n in files.items()}}
                sinks = [self._sinks[name], *taking]
                found += keeper.write_kept(
                    run, sinks, [piece], checkpoint_id, timestamp, self._tasks, letters=self._letters
                )
            self._doing.append(order)
        return found

    def state(self, checkpoint_id: CheckpointId) -> dict[str, Any]:
        """What the decision says of them, as operator state."""
        carried_out = self._decided | {order.number: checkpoint_id for order in self._doing}
        if not carried_out:
            return {}
        return {KEPT_BY: {"version": 1, "replayed": {str(number): done for number, done in carried_out.items()}}}

    def decided(self, checkpoint_id: CheckpointId) -> None:
        """The decision is made: remember it where the log forgets nothing."""
        for order in self._doing:
            logger.info("%d dead letters are sent again with checkpoint %d", order.count, checkpoint_id)
            finish_order(self._log.storage, order.number, checkpoint_id)
        self._open = [order for order in self._open if order not in self._doing]
        # Those of earlier checkpoints have their `.done` by now; the one of this is told until the next.
        self._decided = {order.number: checkpoint_id for order in self._doing}
        self._doing = []
