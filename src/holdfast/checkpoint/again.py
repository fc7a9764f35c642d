"""Rows of a report that are sent again: an order in `again/`, carried out with the next decision.

The rows are copied once more when the order is given, since a sink removes what it has delivered; the report keeps its
own. The next decision names the copies as further committables of the sink, under numbers beyond those of the batch, so
they are delivered exactly as often as any other rows. The order is void as soon as a decided record names its files.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoint import records
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.reports import copy_file, kept_files, rows_folder
from holdfast.checkpoint.storage import Storage
from holdfast.core.model import CheckpointId, Committable
from holdfast.core.naming import escape
from holdfast.errors import ConfigError, RecordError

logger = logging.getLogger("holdfast")


def order_name(checkpoint_id: CheckpointId, sink: str) -> str:
    """Where the order is."""
    return f"again/{checkpoint_id}.{escape(sink)}.json"


def order_again(storage: Storage, report: Mapping[str, Any], who: Mapping[str, Any]) -> dict[str, Any]:
    """Order that the rows of a report are sent again; only those that came from the log can be."""
    number, sink = int(report["checkpoint_id"]), str(report["sink"])
    files = [f for f in kept_files(report) if "data" in f and "problem" not in f]
    others = sum(1 for f in kept_files(report) if "file" in f) - len(files)
    if not files:
        raise ConfigError(
            f"the report about checkpoint {number} of sink {sink!r} keeps no rows that can be sent again: only rows of "
            "a write-ahead log can be. `--rows` exports what it keeps"
        )
    nonce = records.new_nonce()
    handles = []
    for file in files:
        target = f"{rows_folder(number, sink)}/again-{nonce}-{file['subtask']}.arrow"
        if copy_file(storage, file["file"], target) != (file["bytes"], file["sha256"]):
            raise RecordError(f"{storage.url}/{file['file']} is damaged: its checksum does not fit")
        handles.append({"rows": file["rows"], "data": {**file["data"], "handle": target}})
    body = {"checkpoint_id": number, "sink": sink, "handles": handles, **who}
    if not storage.create(order_name(number, sink), records.encode("again", nonce, body)):
        for handle in handles:
            storage.delete(handle["data"]["handle"])
        raise ConfigError(f"checkpoint {number} of sink {sink!r} is ordered to be sent again already: start the query")
    return {**body, "rows": sum(int(h["rows"]) for h in handles), "not_sendable": others}


class SendAgain:
    """The orders that a run finds at its start."""

    def __init__(self, log: CheckpointLog) -> None:
        self._log = log
        self._orders: dict[str, Mapping[str, Any]] = {}

    def load(self) -> None:
        """Read them; one whose files are in a decided record has been carried out, and its driver died over it."""
        named = {
            c.data.get("handle")
            for decided in self._log.facts.decided.values()
            for c in decided.committables
            if isinstance(c.data, Mapping)
        }
        storage = self._log.storage
        for file in storage.names("again"):
            name = f"again/{file}"
            body = records.decode(storage.read(name), f"{storage.url}/{name}", "again")
            if any(handle["data"]["handle"] in named for handle in body["handles"]):
                storage.delete(name)
            else:
                self._orders[name] = body

    def committables(self, sinks: Sequence[str], batch: Sequence[Committable]) -> list[Committable]:
        """What the next decision names besides those of its batch."""
        found: list[Committable] = []
        for body in self._orders.values():
            if body["sink"] not in sinks:
                continue
            mine = [c.subtask for c in (*batch, *found) if c.sink == body["sink"]]
            free = 1 + max(mine, default=-1)
            for n, handle in enumerate(body["handles"]):
                data = {**handle["data"], "subtask": free + n}
                found.append(Committable(body["sink"], free + n, data, int(handle["rows"]), int(data.get("bytes", 0))))
        return found

    def done(self, sinks: Sequence[str], checkpoint_id: CheckpointId) -> None:
        """They are decided: forget the orders."""
        for name, body in list(self._orders.items()):
            if body["sink"] in sinks:
                del self._orders[name]
                self._log.storage.delete(name)
                logger.info(
                    "the rows kept of checkpoint %d are sent again to sink %s with checkpoint %d",
                    body["checkpoint_id"], body["sink"], checkpoint_id,
                )  # fmt: skip
