"""What operators did beside `resolve`, whose orders are records of their own: in `actions/`, for those who look later.

Nothing is decided by it. The command line and the dashboard both write it, after the deed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from holdfast.checkpoint import operator, records
from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.limited import open_limited
from holdfast.checkpoint.storage import open_storage
from holdfast.errors import RecordError, StorageError, first_line

logger = logging.getLogger("holdfast")
FOLDER, KIND = "actions", "action"
COMMAND_LINE = "command line"
#: what can be in it
SAVEPOINT, ABORT, COMMIT = "savepoint made", "transaction aborted", "transaction committed"
#: so many are kept
KEPT = 200


def note(location: str, what: str, details: Mapping[str, Any], *, through: str = COMMAND_LINE) -> dict[str, Any]:
    """Write down that somebody did something here just now; what they did is done, also if that fails."""
    by = operator.who()
    body = {"what": what, **by, "through": through, "details": dict(details)}
    told = ", ".join(f"{key} {value}" for key, value in details.items())
    # Whoever typed a command knows; the log of a dashboard is read by others.
    level = logging.INFO if through == COMMAND_LINE else logging.WARNING
    logger.log(level, "%s at %s, by %s on %s (%s): %s", what, location, by["by"], by["host"], through, told)
    nonce = records.new_nonce()
    try:
        storage = open_storage(log_location(location))
        storage.create(f"{FOLDER}/{int(time.time() * 1000):013d}-{nonce[:8]}.json", records.encode(KIND, nonce, body))
        for name in storage.names(FOLDER)[:-KEPT]:
            storage.delete(f"{FOLDER}/{name}")
    except StorageError as error:
        logger.warning("it could not be written down: %s", first_line(error))
    return body


def read(location: str, *, last: int = 20, largest: int | None = None) -> list[dict[str, Any]]:
    """The newest entries, the newest first; one that is damaged says so."""
    storage = open_limited(log_location(location), largest)
    found: list[dict[str, Any]] = []
    for name in sorted(storage.names(FOLDER), reverse=True)[:last]:
        try:
            body = records.decode(storage.read(f"{FOLDER}/{name}"), f"{storage.url}/{FOLDER}/{name}", KIND)
        except FileNotFoundError:
            continue  # it was old enough to be forgotten just now
        except RecordError as error:
            found.append({"what": "damaged", "by": None, "at": None, "details": {"problem": str(error)}})
            continue
        found.append({key: body.get(key) for key in ("what", "by", "host", "at", "through", "details")})
    return found
