"""`lineage.json`: whose location this is, and since when its ledgers speak of it (rule 10)."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from holdfast.checkpoint import records
from holdfast.checkpoint.storage import Storage
from holdfast.errors import ConfigError

NAME = "lineage.json"
#: how many lineages that were set aside are known at most
REMEMBERED = 50


@dataclass(frozen=True)
class Lineage:
    """The identity of a checkpoint location."""

    pipeline: str
    uuid: str = ""
    #: since which generation it is the one it is: commit records before it speak of another ledger
    since: int = 0
    #: a take-over has begun, and what it sets aside may not be swept yet
    taking_over: bool = False
    #: those whose name this one has taken: their late tasks prepare what nobody else undoes
    set_aside: tuple[str, ...] = ()

    def write(self, storage: Storage) -> Lineage:
        """Replace what is there."""
        body: dict[str, Any] = {"pipeline": self.pipeline, "lineage": self.uuid, "since": self.since}
        body |= {"taking_over": True} if self.taking_over else {}
        body |= {"set_aside": list(self.set_aside)} if self.set_aside else {}
        storage.replace(NAME, records.encode("lineage", records.new_nonce(), body))
        return self

    def taken_over(self, generation: int, others: Collection[str]) -> Lineage:
        """A new one for the same location: what a take-over does, so that ledgers of the old ones are set aside."""
        aside = tuple(dict.fromkeys([*self.set_aside, self.uuid, *others]))[-REMEMBERED:]
        return replace(self, uuid=uuid.uuid4().hex, since=generation, taking_over=True, set_aside=aside)


def open_lineage(storage: Storage, pipeline: str) -> Lineage:
    """Read it, or make it where there is none; ConfigError when the location is another pipeline's."""
    try:
        data = storage.read(NAME)
    except FileNotFoundError:
        body = {"pipeline": pipeline, "lineage": uuid.uuid4().hex}
        storage.create(NAME, records.encode("lineage", records.new_nonce(), body))
        data = storage.read(NAME)
    found = records.decode_with(("pipeline", "lineage"), data, f"{storage.url}/{NAME}", "lineage")
    if found["pipeline"] != pipeline:
        raise ConfigError(
            f"checkpoint location {storage.url} belongs to pipeline {found['pipeline']!r}, not "
            f"{pipeline!r}: use that name, or give this pipeline a checkpoint location of its own"
        )
    taking_over = bool(found.get("taking_over", False))
    aside = tuple(map(str, found.get("set_aside", ())))
    return Lineage(pipeline, str(found["lineage"]), int(found.get("since", 0)), taking_over, aside)


def pipeline_at(storage: Storage) -> str | None:
    """Whose location this is, without making it anybody's; None: nobody's."""
    try:
        data = storage.read(NAME)
    except FileNotFoundError:
        return None
    return str(records.decode_with(("pipeline",), data, f"{storage.url}/{NAME}", "lineage")["pipeline"])
