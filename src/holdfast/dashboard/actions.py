"""What a person may do from the page, if the dashboard was started so: the orders of `holdfast resolve`.

Each takes two requests. The first says what it would mean and gives a token for just this; the second, with that token,
does it. Both need the operator's word, which the dashboard printed where it was started.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint import operator, orders
from holdfast.checkpoint.resolve import TRY_AGAIN, WAYS, check_way, resolve, try_again
from holdfast.checkpoint.stuck import Finding, choose
from holdfast.dashboard.places import Place
from holdfast.errors import ConfigError, RecordError

logger = logging.getLogger("holdfast")
#: seconds for which a token is good, and how many may be open
GOOD_FOR, OPEN = 300.0, 50


@dataclass(frozen=True)
class Planned:
    """What a token stands for."""

    slug: str
    how: str
    meant: tuple[Finding, ...]
    until: float


class Actions:
    """Orders that were asked for and wait to be confirmed."""

    def __init__(self) -> None:
        #: the operator's word; printed once, kept nowhere
        self.word = secrets.token_urlsafe(24)
        self._open: dict[str, Planned] = {}
        self._lock = threading.Lock()

    def knows(self, word: str) -> bool:
        """Whether this is the operator."""
        return hmac.compare_digest(word.encode(), self.word.encode())

    def plan(self, place: Place, how: str, checkpoint_id: int, sink: str) -> dict[str, Any]:
        """What an order would mean, and the token for it; the log is not changed."""
        if how not in WAYS:
            raise ConfigError(f"how must be one of {', '.join(WAYS)}")
        meant = tuple(self._meant(place, how, checkpoint_id, sink))
        token = secrets.token_urlsafe(24)
        with self._lock:
            now = time.monotonic()
            kept = [(t, p) for t, p in self._open.items() if p.until > now][-(OPEN - 1) :]
            self._open = {**dict(kept), token: Planned(place.slug, how, meant, now + GOOD_FOR)}
        found = place.status()
        asked = f"{operator.question(meant, how)}{operator.elsewhere(found.owner)}"
        return {"question": asked, "token": token, "expires_seconds": int(GOOD_FOR)}

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

    def confirm(self, place: Place, token: str) -> dict[str, Any]:
        """Do what was planned, once; it is recorded in the log as an order of the command line is."""
        with self._lock:
            planned = self._open.pop(token, None)
        if planned is None or planned.slug != place.slug or planned.until <= time.monotonic():
            raise ConfigError("this token is unknown, used or too old: ask again")
        first = planned.meant[0]
        again = self._meant(place, planned.how, first.checkpoint_id, first.sink)
        if tuple(again) != planned.meant:
            raise ConfigError("something changed meanwhile: look again")
        by = operator.who()
        by["by"] = f"{by['by']} (dashboard)"
        for finding in planned.meant:
            what = (planned.how, finding.checkpoint_id, finding.sink, place.location, by["by"])
            logger.warning("%s of checkpoint %d, sink %s, at %s, by %s", *what)
        log = place.log()
        log.load()
        orders.finish(log, present=log.sink_names())
        if planned.how == TRY_AGAIN:
            try_again(log.storage, planned.meant)
            reports: list[dict[str, Any]] = []
        else:
            pipeline = str(place.status().pipeline)
            reports = resolve(place.location, pipeline, planned.meant, planned.how, by)
        place.forget()
        return {"done": planned.how, "reports": reports, "message": "recorded: the next start of the query goes on"}
