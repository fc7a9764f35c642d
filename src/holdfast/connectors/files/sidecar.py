"""What would make a decision record large: in files of its own, created exclusively, checksummed, named by the record.

The list of a task's parts when it has several buckets (`parts/<lineage>/...json`), and the sink's state when many parts
wait (`state/<lineage>/<generation>-<number>-<uuid>.json`).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.checkpoint.records import decode_with, encode, new_nonce
from holdfast.connectors.files.parts import Folder
from holdfast.connectors.files.rolling import Part
from holdfast.errors import RecordError, SinkError, StorageError

#: bytes that stay in the record itself: of the parts of each subtask, and of a sink's state; where a pattern has many
#: folders each of them has both, so their states get less
PARTS_BYTES, STATE_BYTES, TARGET_BYTES = 1_024, 32_768, 4_096
#: lists of a checkpoint are read that many at a time: there is one for each subtask
_READERS = 16
_KIND = "files-list"
_STATE = re.compile(r"(0|[1-9]\d*)-(0|[1-9]\d*)-[0-9a-f]{32}\.json")
_FIELDS = (
    "file", "bucket", "schema", "rows", "bytes", "sha256", "first", "last", "since", "until", "level", "format",
    "compression", "offset",
)  # fmt: skip
#: the same for many parts: kept once
_SHARED = ("file", "schema", "first", "last", "since", "until", "level", "format", "compression")


def _pack(parts: Sequence[Mapping[str, Any]], shared: dict[str, int], heads: list[list[Any]]) -> list[list[Any]]:
    """Parts as short lists; what many of them share is kept in `heads`."""
    found = []
    for part in parts:
        head = [part.get(name) for name in _SHARED]
        key = json.dumps(head)
        if key not in shared:
            shared[key] = len(heads)
            heads.append(head)
        found.append([shared[key], *(part.get(name) for name in _FIELDS if name not in _SHARED)])
    return found


def _unpack(rows: Sequence[Sequence[Any]], heads: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    own = [name for name in _FIELDS if name not in _SHARED]
    parts = []
    for head, *values in rows:
        part = {**dict(zip(_SHARED, heads[head], strict=True)), **dict(zip(own, values, strict=True))}
        parts.append({name: value for name, value in part.items() if value is not None or name == "sha256"})
    return parts


def _write(folder: Folder, name: str, body: Mapping[str, Any]) -> None:
    if not folder.storage.create(folder.hidden(name), encode(_KIND, new_nonce(), body)):
        raise StorageError(f"{folder.url(folder.hidden(name))} is there already, and no other may have that name")


def _read(folder: Folder, name: str, *fields: str) -> dict[str, Any]:
    path = folder.hidden(name)
    return decode_with(fields, folder.storage.read(path), folder.url(path), _KIND)


def put_parts(folder: Folder, name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What the committable says of the parts of a task: all of them, or where the list of many is."""
    if len(json.dumps(parts)) <= PARTS_BYTES:
        return {"parts": parts}
    heads: list[list[Any]] = []
    _write(folder, name, {"parts": _pack(parts, {}, heads), "heads": heads})
    return {"parts": [], "list": name, "count": len(parts)}


def parts_of(folder: Folder, committable: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of a committable; FileNotFoundError when the list of them is gone."""
    if "list" not in committable:
        return list(committable["parts"])
    found = _read(folder, committable["list"], "parts", "heads")
    return _unpack(found["parts"], found["heads"])


def parts_before_decision(folder: Folder, committables: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The parts of all of them, where a list that is gone means that the batch is written again."""

    def read(committable: Mapping[str, Any]) -> list[dict[str, Any]]:
        try:
            return parts_of(folder, committable)
        except FileNotFoundError as error:
            where = folder.url(folder.hidden(committable["list"]))
            raise SinkError(f"{where} was removed before it was decided: start the query again") from error

    if not any("list" in committable for committable in committables):
        return [part for committable in committables for part in committable["parts"]]
    with ThreadPoolExecutor(max_workers=_READERS) as pool:
        return [part for parts in pool.map(read, committables) for part in parts]


def parts_left(folder: Folder, committable: Mapping[str, Any], known: Sequence[Part]) -> list[Part]:
    """The parts of a committable; when the list of them is gone, those that are known otherwise."""
    try:
        return [Part.from_json(part) for part in parts_of(folder, committable)]
    except FileNotFoundError:
        return [part for part in known if _attempt(part.file) == _attempt(committable["list"])]


def ends_of(folder: Folder, committable: Mapping[str, Any]) -> list[Part]:
    """Of the parts that share a file only the last, whose end is the file's; a list that is gone counts as one."""
    try:
        parts = [Part.from_json(part) for part in parts_of(folder, committable)]
    except FileNotFoundError:
        return [Part(committable["list"], "", "", 0, 0, "", 0, 0, 0, 0)]
    return list({part.file: part for part in sorted(parts, key=lambda part: part.offset)}.values())


def files_of(folder: Folder, committables: Sequence[Mapping[str, Any]], known: Collection[str]) -> set[str]:
    """The hidden files of committables: those that are there, and those of `known` that may be gone.

    A list need not be read for it, and may be gone, too: all files of one attempt at a subtask begin with its name.
    """
    named = {part["file"] for c in committables for part in c["parts"]}
    listed = [c for c in committables if "list" in c]
    named |= {file for c in listed for file in (c["list"], *c.get("files", ()))}
    # Earlier versions named the files beside the list.
    attempts = {_attempt(c["list"]) for c in listed if "files" not in c}
    for place in {attempt.rpartition("/")[0] for attempt in attempts}:
        there = (f"{place}/{file}" for file in folder.storage.names(folder.hidden(place)))
        named |= {file for file in (*there, *known) if _attempt(file) in attempts}
    return named


def _attempt(file: str) -> str:
    """A name without what is unique to this file."""
    return file.rpartition("-")[0]


def put_state(
    folder: Folder, lineage: str, generation: int, number: int, state: dict[str, Any], most: int
) -> dict[str, Any]:
    """The state as the record has it: itself, up to so many bytes, or where it is."""
    if len(json.dumps(state)) <= most:
        return state
    name = f"state/{lineage}/{generation}-{number}-{uuid.uuid4().hex}.json"
    heads: list[list[Any]] = []
    shared: dict[str, int] = {}
    body = {
        "waiting": _pack(state["waiting"], shared, heads),
        "rolls": [{**roll, "parts": _pack(roll["parts"], shared, heads)} for roll in state["rolls"]],
        "heads": heads,
    }
    _write(folder, name, body)
    return {**state, "waiting": [], "rolls": [], "in": name}


def get_state(folder: Folder, state: Any) -> Any:
    """The whole state of a record."""
    if not isinstance(state, dict) or "in" not in state:
        return state
    try:
        body = _read(folder, state["in"], "waiting", "rolls", "heads")
    except FileNotFoundError:
        raise RecordError(
            f"{folder.url(folder.hidden(state['in']))} is missing: it says which rows wait for their file, and the "
            "newest record names it. Restore it from a copy of the folder"
        ) from None
    heads = body["heads"]
    rolls = [{**roll, "parts": _unpack(roll["parts"], heads)} for roll in body["rolls"]]
    return {**state, "waiting": _unpack(body["waiting"], heads), "rolls": rolls}


def sweep_states(folder: Folder, lineage: str, keep: set[str], newest: tuple[int, int]) -> None:
    """Remove states that newer ones have replaced: those before (generation, number) that are not to be kept."""
    place = f"state/{lineage}"
    for file in folder.storage.names(folder.hidden(place)):
        match = _STATE.fullmatch(file)
        if match is not None and f"{place}/{file}" not in keep and (int(match[1]), int(match[2])) < newest:
            folder.storage.delete(folder.hidden(f"{place}/{file}"))
