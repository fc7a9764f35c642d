"""Asking a pipeline for a savepoint: a running one through the log, a stopped one by a generation of our own.

The order is a record in `savepoints/`, and so is its answer. The driver looks for orders on its timer and carries them
out between two batches; whoever asked waits for the answer, which is created whole. So nobody copies what is half
written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from holdfast.checkpoint import records
from holdfast.checkpoint.history import engine_position, log_location
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.reader import LogReader
from holdfast.checkpoint.runs import Owner, note_command
from holdfast.checkpoint.savepoint import Savepoint, check_savepoint_name, prune, read_savepoint, take
from holdfast.checkpoint.status import require_used
from holdfast.checkpoint.storage import LocalStorage, Storage, open_storage
from holdfast.core.options import Duration, checked, whole
from holdfast.core.paths import AnyPath, path_text
from holdfast.core.units import parse_duration
from holdfast.errors import HoldfastError, RecordError, SavepointError, first_line

logger = logging.getLogger("holdfast")
ORDERS, ANSWERS = "savepoints", "savepoints/answers"
#: seconds between two looks for the answer, here and in an object store, where each is a request that is paid for
LOOK, LOOK_FAR = 0.2, 2.0
#: ... of the driver for orders; on a local disk it looks whenever its timer comes
LOOK_FOR_ORDERS_FAR = 20.0
#: every so many looks it is asked whether the driver lives
ASK_ALIVE = 10


@checked
def savepoint(
    checkpoint_location: AnyPath,
    target: AnyPath,
    *,
    name: str | None = None,
    keep: Annotated[int, whole(1, says="a number of savepoints, at least 1")] | None = None,
    timeout: Duration = 600.0,
    stopped: bool = False,
) -> Savepoint:
    """Make a savepoint of a pipeline in a folder of `target`, and say where it is.

    A running query takes it between two of its batches, a stopped one is copied from here. `name` is that of the new
    folder; `keep` removes all but so many of this pipeline's savepoints in `target` afterwards. `timeout` says how long
    to wait for a running query. `stopped`: there is no driver any more, although that cannot be seen from here.
    """
    location = path_text("checkpoint_location", checkpoint_location, "a path or URL").rstrip("/")
    folder = path_text("target", target, "a path or URL")
    store = open_storage(folder)
    # The driver may work in another folder than we do.
    folder = store.url if isinstance(store, LocalStorage) else folder.rstrip("/")
    if name is not None:
        check_savepoint_name(name)
    wait = parse_duration("timeout", timeout) or 0.0
    require_used(location)
    reader = LogReader(location)
    pipeline = str(reader.identity().get("pipeline", ""))
    if not pipeline:
        raise RecordError(f"{location} has no lineage record: is it a checkpoint location of holdfast?")
    found = None
    if not stopped and _may_live(reader.owner()):
        found = _ask(location, folder, name, wait)
    if found is None:
        found = _take_stopped(location, pipeline, folder, name)
    if keep is not None:
        prune(folder, found.pipeline, keep)
    return found


def _may_live(owner: Owner | None) -> bool:
    return owner is not None and owner.alive is not False


def _take_stopped(location: str, pipeline: str, target: str, name: str | None) -> Savepoint:
    """By a generation of our own: a driver that starts meanwhile is noticed before the manifest is written."""
    log = CheckpointLog(open_storage(log_location(location)), pipeline)
    log.start()
    note_command(log.storage, log.generation, "savepoint")
    return take(log, location, target, name)


def _ask(location: str, target: str, name: str | None, timeout: float) -> Savepoint | None:
    """Ask the driver and wait; None when there turns out to be none any more."""
    storage, order = open_storage(log_location(location)), records.new_nonce()
    body = {"target": target, "name": name, "at": int(time.time() * 1000)}
    storage.create(_order(order), records.encode("savepoint-order", order, body))
    try:
        deadline, looks = time.monotonic() + timeout, 0
        while True:
            answer = _read(storage, _answer(order), "savepoint-answer")
            if answer is not None:
                break
            looks += 1
            if looks % ASK_ALIVE == 0 and not _may_live(LogReader(location).owner()):
                return None
            if time.monotonic() > deadline:
                raise SavepointError(_too_late(location, timeout))
            time.sleep(LOOK if isinstance(storage, LocalStorage) else LOOK_FAR)
    finally:
        storage.delete(_order(order))
        storage.delete(_answer(order))
    if answer.get("error") is not None:
        raise SavepointError(f"the running query could not take the savepoint: {answer['error']}")
    return read_savepoint(str(answer["path"]))


def _too_late(location: str, timeout: float) -> str:
    reader = LogReader(location)
    reader.load()
    owed = [f"sink {p.sink!r} owes {p.checkpoints} checkpoints" for p in reader.pending()]
    why = f"{', '.join(owed)}, and a savepoint holds no undelivered rows" if owed else "it may be in a long batch"
    return (
        f"the running query has not taken the savepoint within {timeout:.0f} s: {why}. Nothing was changed. Wait "
        "longer (timeout), or stop the query and ask again; if its driver is gone for good, say so (--stopped)"
    )


def _order(nonce: str) -> str:
    return f"{ORDERS}/{nonce}.json"


def _answer(nonce: str) -> str:
    return f"{ANSWERS}/{nonce}.json"


def _read(storage: Storage, name: str, kind: str) -> dict[str, Any] | None:
    try:
        return records.decode(storage.read(name), f"{storage.url}/{name}", kind)
    except FileNotFoundError:
        return None


class Desk:
    """The driver's side: which savepoints are ordered, and taking them."""

    def __init__(self, log: CheckpointLog, location: str, clock: Callable[[], float] = time.time) -> None:
        self._log, self._location, self._clock = log, location, clock
        self._every = 0.0 if isinstance(log.storage, LocalStorage) else LOOK_FOR_ORDERS_FAR
        self._next = float("-inf")
        #: names of orders that wait
        self.waiting: tuple[str, ...] = ()

    def look(self) -> None:
        """On the timer, when it is time to: see what is ordered. What cannot be read now is seen the next time."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + self._every
        try:
            self.waiting = tuple(self._log.storage.names(ORDERS))
        except HoldfastError as error:
            logger.warning("whether a savepoint is ordered could not be seen: %s", first_line(error))

    def serve(self, settle: Callable[[], bool]) -> None:
        """Between two batches: take what is ordered, once `settle` says that nothing is owed or held back."""
        if not self.waiting:
            return
        # Else Spark is about to commit its last batch: a moment later the copy is simpler to start from.
        if engine_position(self._location)[1] != self._log.last_decided or not settle():
            return
        for order, body in list(self._orders()):
            try:
                answer = {"path": take(self._log, self._location, str(body["target"]), body["name"]).path}
            except (HoldfastError, OSError) as error:  # told to whoever asked: no savepoint is worth the query
                answer = {"error": f"{type(error).__name__}: {error}"}
            self._log.storage.replace(_answer(order), records.encode("savepoint-answer", order, answer))
            self._log.storage.delete(_order(order))
        self.waiting = ()

    def _orders(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for file in self.waiting:
            try:
                body = _read(self._log.storage, f"{ORDERS}/{file}", "savepoint-order")
            except RecordError as error:
                logger.warning("%s It is only the order for a savepoint, and is removed", error)
                self._log.storage.delete(f"{ORDERS}/{file}")
                continue
            if body is not None:  # else whoever asked has given up
                yield file.removesuffix(".json"), body
