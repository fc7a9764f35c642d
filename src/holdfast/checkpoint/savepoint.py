"""Savepoints: whole copies of a pipeline's checkpoint that another one can start from (S5).

A savepoint holds no rows. It is taken between two batches, when every decided checkpoint is committed in every sink and
no sink holds rows back; so what a sink has up to here is all that it will ever have of it, and a new lineage owes
nothing of the old one's. Its manifest, `savepoint.json`, is written last: half a savepoint is none.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint import enginefiles, records
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import EnginePosition
from holdfast.checkpoint.refusals import check_engine
from holdfast.checkpoint.storage import LocalStorage, Storage, open_storage
from holdfast.core.model import CheckpointId
from holdfast.core.naming import escape
from holdfast.core.recovery import plan_recovery
from holdfast.errors import ConfigError, RecordError, StaleCheckpointError, UndeliveredError

logger = logging.getLogger("holdfast")
MANIFEST = "savepoint.json"
#: below it, Spark's files as they are at the checkpoint location
SPARK = "spark"
_FIELDS = ("pipeline", "lineage", "location", "created", "decided", "offsets", "sinks", "files")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_CHUNK = 1 << 20
#: how many files are copied side by side: most are small, and wait for the disk or the store
COPIERS = 16


@dataclass(frozen=True)
class Savepoint:
    """One savepoint, as its manifest tells; times in milliseconds since the epoch."""

    path: str
    pipeline: str
    lineage: str
    #: the checkpoint location it is a copy of
    location: str
    created: int
    #: the last checkpoint that it knows, decided and delivered
    checkpoint_id: CheckpointId
    #: the last batch that Spark had committed: this one or the one before
    spark_committed: CheckpointId | None
    #: where each source stood at the end of that batch
    offsets: list[Any]
    #: sink -> mark (the last checkpoint with rows that it has committed, None if it had none lately)
    sinks: Mapping[str, Any]
    #: name -> bytes, sha256
    files: Mapping[str, Any] = field(repr=False)
    #: what the decision record of the checkpoint says: sinks, timestamp, state
    decided: Mapping[str, Any] = field(repr=False)

    @property
    def bytes(self) -> int:
        """How large it is."""
        return sum(int(file["bytes"]) for file in self.files.values())


def join(folder: str, name: str) -> str:
    """A path or URL below another."""
    return f"{folder.rstrip('/')}/{name}"


def check_savepoint_name(name: str) -> str:
    """The name of a savepoint's folder, if it is one."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"name must be letters, digits, '_', '-' and '.', at most 200 and no '.' first: {name!r}")
    return name


def take(log: CheckpointLog, location: str, target: str, name: str | None = None) -> Savepoint:
    """Copy what this log and Spark's checkpoint beside it say; nobody may be in a batch, and the log must be ours."""
    source = open_storage(location)
    location = source.url if isinstance(source, LocalStorage) else location
    engine = enginefiles.files_of(source)
    last = log.last_decided
    if last is None or engine.planned is None:
        raise ConfigError(f"{location} has no decided checkpoint yet: there is nothing to make a savepoint of")
    check_engine(log, EnginePosition(engine.planned, engine.committed), adopt=False)
    check_delivered(log, location)
    decided = log.facts.decided[last]
    known = log.committed()
    if name is None:
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{escape(log.pipeline)[:150]}-{last}-{when}-{records.new_nonce()[:4]}"
    folder = join(target, name)
    store = open_storage(folder)
    if store.walk(""):
        raise ConfigError(f"{folder} is there already: choose another name")
    lines = enginefiles.read_offsets(source, last if engine.committed is None else engine.committed)
    with ThreadPoolExecutor(max_workers=COPIERS) as pool:
        copies = pool.map(lambda file: _copied(source, store, file, f"{SPARK}/{file}"), engine.names)
        files = {f"{SPARK}/{file}": told for file, told in zip(engine.names, copies, strict=True) if told is not None}
    body: dict[str, Any] = {
        "pipeline": log.pipeline,
        "lineage": log.lineage,
        "generation": log.generation,
        "location": location,
        "created": int(time.time() * 1000),
        "decided": {
            "checkpoint_id": last,
            "sinks": list(decided.sinks),
            "timestamp": decided.timestamp,
            "state": dict(decided.state),
        },
        "spark_committed": engine.committed,
        "offsets": enginefiles.positions(lines),
        "sinks": {s: {"mark": known[s].checkpoint_id if s in known else None} for s in decided.sinks},
        "files": files,
    }
    log.ensure_not_fenced()
    store.create(MANIFEST, records.encode("savepoint", records.new_nonce(), body))
    logger.info("savepoint of checkpoint %d of %s: %s", last, log.pipeline, folder)
    return _parsed(folder, body)


def check_delivered(log: CheckpointLog, location: str) -> None:
    """Raise while a sink owes rows or holds some back."""
    owed = plan_recovery(log.facts)
    if owed:
        first = owed[0]
        raise UndeliveredError(
            f"{len({o.checkpoint_id for o in owed})} checkpoints are decided and not delivered yet, the first is "
            f"{first.checkpoint_id} of sink {first.sink!r}: start the query and let it catch up, or end it by "
            f"`holdfast resolve {location}`; `holdfast status {location}` says why"
        )
    last = log.last_decided
    for sink, rows in held_back({} if last is None else log.facts.decided[last].state).items():
        raise UndeliveredError(
            f"sink {sink!r} holds {rows} rows back in files that are not rolled yet: `holdfast flush {location}` "
            "completes them"
        )


def held_back(state: Mapping[str, Any]) -> dict[str, int]:
    """Sink -> rows of complete checkpoints that wait in hidden files for more."""
    found = {}
    for sink, told in state.items():
        if isinstance(told, Mapping) and told.get("kind") == "holdfast.files" and told.get("waiting"):
            found[sink] = sum(int(part["rows"]) for part in told["waiting"])
    return found


def _copied(source: Storage, target: Storage, name: str, to: str) -> dict[str, Any] | None:
    """Copy a file; its length and checksum. None: Spark's maintenance removed it meanwhile, as too old to be needed."""
    try:
        return copy(source, target, name, to)
    except FileNotFoundError:
        if enginefiles.version(name) is None and not name.startswith(("state/", "commits/", "offsets/")):
            raise StaleCheckpointError(f"{source.url}/{name} vanished while it was copied: take it again") from None
        return None


def copy(source: Storage, target: Storage, name: str, to: str) -> dict[str, Any]:
    """Copy a file from one store to another, durably: its length and checksum."""
    digest, size = hashlib.sha256(), 0
    with source.reader(name) as reading, target.writer(to) as writing:
        while chunk := reading.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            writing.write(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


# -- reading ---------------------------------------------------------------------------------------------------------


def read_savepoint(path: str) -> Savepoint:
    """The savepoint in a folder; ConfigError when there is none, RecordError when its manifest is damaged."""
    store = open_storage(path)
    try:
        data = store.read(MANIFEST)
    except FileNotFoundError:
        some = "it is half of one, whose writer died or is still at work" if store.walk("") else "it is not there"
        raise ConfigError(f"{path} is no savepoint ({some}): `holdfast savepoint list` shows those there are") from None
    return _parsed(path, records.decode_with(_FIELDS, data, f"{store.url}/{MANIFEST}", "savepoint"))


def _parsed(path: str, body: Mapping[str, Any]) -> Savepoint:
    return Savepoint(
        path,
        body["pipeline"],
        body["lineage"],
        body["location"],
        int(body["created"]),
        int(body["decided"]["checkpoint_id"]),
        body.get("spark_committed"),
        list(body["offsets"]),
        dict(body["sinks"]),
        dict(body["files"]),
        dict(body["decided"]),
    )


def verify(found: Savepoint) -> None:
    """Read every file and compare it with the manifest; RecordError at the first that is missing or differs."""
    store = open_storage(found.path)
    for name, told in found.files.items():
        digest, size = hashlib.sha256(), 0
        try:
            with store.reader(name) as reading:
                while chunk := reading.read(_CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
        except FileNotFoundError:
            raise damaged(found, name, "is missing") from None
        if {"bytes": size, "sha256": digest.hexdigest()} != told:
            raise damaged(found, name, "is damaged: its checksum does not fit")


def damaged(found: Savepoint, name: str, why: str) -> RecordError:
    """The error for a file of a savepoint that cannot be trusted."""
    return RecordError(f"{join(found.path, name)} {why}. Restore it from a copy, or use another savepoint")


def list_savepoints(target: str) -> list[Savepoint]:
    """Those in a folder, the oldest first; halves are not among them."""
    found = [read_savepoint(join(target, name)) for name in _folders(target, whole=True)]
    return sorted(found, key=lambda s: (s.created, s.path))


def _folders(target: str, *, whole: bool) -> list[str]:
    store = open_storage(target)
    names: dict[str, bool] = {}
    for file in store.walk(""):
        folder, slash, rest = file.partition("/")
        if slash:
            names[folder] = names.get(folder, False) or rest == MANIFEST
    return sorted(name for name, is_whole in names.items() if is_whole is whole)


def halves(target: str) -> list[str]:
    """Folders of savepoints that have no manifest: somebody is writing them, or died over it."""
    return [join(target, name) for name in _folders(target, whole=False) if _is_half(join(target, name))]


def _is_half(path: str) -> bool:
    names = open_storage(path).walk("")
    return bool(names) and all(name.startswith(f"{SPARK}/") for name in names)


def delete_savepoint(path: str) -> Savepoint | None:
    """Remove one; its manifest first, so that what a kill leaves is none. None: it was a half."""
    found = None if _is_half(path) else read_savepoint(path)
    _remove(path)
    return found


def _remove(path: str) -> None:
    store = open_storage(path)
    store.delete(MANIFEST)
    names = store.walk("")
    for name in names:
        store.delete(name)
    folders = {"/".join(n.split("/")[:depth]) for n in names for depth in range(1, n.count("/") + 1)}
    for folder in sorted(folders, key=len, reverse=True):
        store.remove_folder(folder)
    store.remove_folder("")


def prune(target: str, pipeline: str, keep: int) -> list[str]:
    """Keep the newest savepoints of a pipeline and remove its others; what was removed."""
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ConfigError(f"keep must be a number of savepoints, at least 1, not {keep!r}")
    mine = [found for found in list_savepoints(target) if found.pipeline == pipeline]
    gone = [found.path for found in mine[:-keep]]
    for path in gone:
        _remove(path)
    return gone
