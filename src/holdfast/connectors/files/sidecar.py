"""What would make a decision record large: in files of its own, created exclusively, checksummed, named by the record.

The list of a task's parts when it has many buckets (`parts/<lineage>/...json`), and the sink's state when many parts
wait (`state/<lineage>/<generation>-<number>-<uuid>.json`).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoint.records import decode_with, encode, new_nonce
from holdfast.connectors.files.parts import Folder
from holdfast.connectors.files.rolling import Part
from holdfast.errors import RecordError, SinkError, StorageError

#: what stays in the record itself
MOST_PARTS, MOST_BYTES = 64, 32_768
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
    if len(parts) <= MOST_PARTS:
        return {"parts": parts}
    heads: list[list[Any]] = []
    _write(folder, name, {"parts": _pack(parts, {}, heads), "heads": heads})
    files = sorted({part["file"] for part in parts})
    return {"parts": [], "list": name, "files": files, "count": len(parts)}


def parts_of(folder: Folder, committable: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of a committable; FileNotFoundError when the list of them is gone."""
    if "list" not in committable:
        return list(committable["parts"])
    found = _read(folder, committable["list"], "parts", "heads")
    return _unpack(found["parts"], found["heads"])


def parts_before_decision(folder: Folder, committable: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same, where a list that is gone means that the batch is written again."""
    try:
        return parts_of(folder, committable)
    except FileNotFoundError as error:
        where = folder.url(folder.hidden(committable["list"]))
        raise SinkError(f"{where} was removed before it was decided: start the query again") from error


def ends_of(folder: Folder, committable: Mapping[str, Any]) -> list[Part]:
    """Of the parts that share a file only the last, whose end is the file's; a list that is gone counts as one."""
    try:
        parts = [Part.from_json(part) for part in parts_of(folder, committable)]
    except FileNotFoundError:
        return [Part(committable["list"], "", "", 0, 0, "", 0, 0, 0, 0)]
    return list({part.file: part for part in sorted(parts, key=lambda part: part.offset)}.values())


def files_of(committable: Mapping[str, Any]) -> set[str]:
    """The hidden files of a committable."""
    named = {part["file"] for part in committable["parts"]}
    return named | set(committable.get("files", ())) | ({committable["list"]} if "list" in committable else set())


def put_state(folder: Folder, lineage: str, generation: int, number: int, state: dict[str, Any]) -> dict[str, Any]:
    """The state as the record has it: itself, or where it is."""
    if len(json.dumps(state)) <= MOST_BYTES:
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
