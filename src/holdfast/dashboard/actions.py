"""What a person may do from the page, if the dashboard was started so: orders, savepoints, aborts of transactions.

Each takes two requests. The first says what it would mean and gives a token for just this; the second, with that token,
does it. Both need the operator's word, which the dashboard printed where it was started.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint import journal, operator, orders
from holdfast.checkpoint.resolve import TRY_AGAIN, WAYS, check_way, record_orders, try_again
from holdfast.checkpoint.savepoint_orders import savepoint
from holdfast.checkpoint.stuck import Finding, choose
from holdfast.connectors.kafka.sink import ending
from holdfast.dashboard.documents import pipeline_transactions
from holdfast.dashboard.places import Place
from holdfast.errors import ConfigError, RecordError

logger = logging.getLogger("holdfast")
#: seconds for which a token is good, and how many may be open
GOOD_FOR, OPEN = 300.0, 50
#: seconds for which a page waits for a running query to take a savepoint
SAVEPOINT_WAIT = 60.0
THROUGH = "dashboard"


@dataclass(frozen=True)
class Planned:
    """What a token stands for."""

    slug: str
    act: Callable[[], dict[str, Any]]
    until: float


class Actions:
    """Orders that were asked for and wait to be confirmed."""

    def __init__(self, kafka: Mapping[str, str], savepoints: str | None) -> None:
        #: the operator's word; printed once, kept nowhere
        self.word = secrets.token_urlsafe(24)
        self._kafka, self._savepoints = kafka, savepoints
        self._open: dict[str, Planned] = {}
        self._lock = threading.Lock()

    def knows(self, word: str) -> bool:
        """Whether this is the operator."""
        return hmac.compare_digest(word.encode(), self.word.encode())

    def _planned(self, place: Place, question: str, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        token = secrets.token_urlsafe(24)
        with self._lock:
            now = time.monotonic()
            kept = [(t, p) for t, p in self._open.items() if p.until > now][-(OPEN - 1) :]
            self._open = {**dict(kept), token: Planned(place.slug, act, now + GOOD_FOR)}
        return {"question": question, "token": token, "expires_seconds": int(GOOD_FOR)}

    def confirm(self, place: Place, token: str) -> dict[str, Any]:
        """Do what was planned, once; it is recorded in the log as the command line's are."""
        with self._lock:
            planned = self._open.pop(token, None)
        if planned is None or planned.slug != place.slug or planned.until <= time.monotonic():
            raise ConfigError("this token is unknown, used or too old: ask again")
        try:
            return planned.act()
        finally:
            place.forget()

    # -- orders about a stuck checkpoint ----------------------------------------------------------------------------

    def plan(self, place: Place, how: str, checkpoint_id: int, sink: str) -> dict[str, Any]:
        """What an order would mean, and the token for it; the log is not changed."""
        if how not in WAYS:
            raise ConfigError(f"how must be one of {', '.join(WAYS)}")
        meant = tuple(self._meant(place, how, checkpoint_id, sink))
        asked = f"{operator.question(meant, how)}{operator.elsewhere(place.status().owner)}"
        return self._planned(place, asked, lambda: self._order(place, how, meant))

    def _meant(self, place: Place, how: str, checkpoint_id: int, sink: str) -> list[Finding]:
        place.forget()
        found = place.status()
        if found.damaged or found.pipeline is None:
            raise RecordError("; ".join(d.problem for d in found.damaged) or "there is no lineage record")
        operator.refuse_running(found)
        log = place.log()
        log.load()
        meant = choose(log, checkpoint_id, sink)
        for finding in meant:
            check_way(place.location, finding, how)
        return meant

    def _order(self, place: Place, how: str, meant: tuple[Finding, ...]) -> dict[str, Any]:
        if tuple(self._meant(place, how, meant[0].checkpoint_id, meant[0].sink)) != meant:
            raise ConfigError("something changed meanwhile: look again")
        by = operator.who()
        by["by"] = f"{by['by']} (dashboard)"
        for finding in meant:
            what = (how, finding.checkpoint_id, finding.sink, place.location, by["by"])
            logger.warning("%s of checkpoint %d, sink %s, at %s, by %s", *what)
        log = place.log()
        log.load()
        orders.finish(log, present=log.sink_names())
        reports: list[dict[str, Any]] = []
        if how == TRY_AGAIN:
            try_again(log.storage, meant)
        else:
            reports = record_orders(place.location, str(place.status().pipeline), meant, how, by)
        return _done(how, "recorded: the next start of the query goes on", reports=reports)

    # -- savepoints -------------------------------------------------------------------------------------------------

    def plan_savepoint(self, place: Place) -> dict[str, Any]:
        """What a savepoint would mean, and the token for it."""
        if self._savepoints is None:
            raise ConfigError("there is no folder for savepoints: start the dashboard with --savepoints FOLDER")
        target, found = self._savepoints, place.status()
        alive = found.owner is not None and found.owner.alive is not False
        when = "between two of its batches, by the query that runs" if alive else "from the files of the stopped query"
        asked = f"a savepoint of {found.pipeline!r} is made in {target}, {when}; nothing else changes"
        return self._planned(place, asked, lambda: self._take(place, target))

    def _take(self, place: Place, target: str) -> dict[str, Any]:
        made = savepoint(place.location, target, timeout=SAVEPOINT_WAIT)
        told = {"path": made.path, "checkpoint": made.checkpoint_id}
        journal.note(place.location, journal.SAVEPOINT, told, through=THROUGH)
        place.forget_savepoints()
        return _done("savepoint", f"checkpoint {made.checkpoint_id} is in {made.path}", **told)

    # -- transactions -----------------------------------------------------------------------------------------------

    def plan_abort(self, place: Place, transactional_id: str) -> dict[str, Any]:
        """What the abort of a transaction would mean, and the token for it; one that is decided is refused."""
        with pipeline_transactions(place, self._kafka) as found:
            seen = found.one(transactional_id)
            ending.refuse_abort(place.location, seen)
            asked = ending.abort_means(found, seen)
        return self._planned(place, asked, lambda: self._abort(place, transactional_id))

    def _abort(self, place: Place, transactional_id: str) -> dict[str, Any]:
        with pipeline_transactions(place, self._kafka) as found:
            seen = found.one(transactional_id)
            ending.refuse_abort(place.location, seen)
            outcome = ending.abort(found, seen)
        told = {"transactional_id": transactional_id, "sink": seen.sink}
        if outcome == ending.ABORTED:
            journal.note(place.location, journal.ABORT, told, through=THROUGH)
        return _done("abort", f"{transactional_id}: {outcome}", **told)


def _done(what: str, message: str, **more: Any) -> dict[str, Any]:
    return {"done": what, "message": message, "reports": [], **more}
