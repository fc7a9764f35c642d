"""Records as bytes: one line of JSON with its checksum in front.

`{"sha256":"<hex>","record":{...}}`. The checksum is over the record's own bytes and is checked before anything is
parsed, so a damaged record can raise nothing but RecordError.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from holdfast.core.model import Committable, Record, RecordKind, Slot
from holdfast.errors import ConfigError, RecordError, StorageError

VERSION = 1
_HEAD = b'{"sha256":"'
_MIDDLE = b'","record":'
_TAIL = b"}\n"
_DIGEST = 64


def new_nonce() -> str:
    """Tells a writer its own record from another's when the answer to `create` was lost."""
    return uuid.uuid4().hex


def encode(kind: str, nonce: str, body: Mapping[str, Any]) -> bytes:
    """A record as bytes; a body that is not plain JSON data is an error."""
    document = {"version": VERSION, "kind": kind, "nonce": nonce, **body}
    try:
        raw = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise StorageError(
            f"a {kind} record cannot be written as JSON: {error}; committables and operator state must be made of "
            "dict, list, str, int, float, bool and None"
        ) from error
    return _HEAD + hashlib.sha256(raw).hexdigest().encode() + _MIDDLE + raw + _TAIL


def check_plain(what: str, data: Any) -> Any:
    """`data`, if a record gives it back as it went in; else ConfigError: `what` is a method of the sink's author."""
    try:
        unchanged = json.loads(json.dumps(data, allow_nan=False)) == data
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} must return plain JSON data: {error}") from error
    if not unchanged:
        raise ConfigError(f"{what} must return plain JSON data that comes back unchanged: string keys, no tuples")
    return data


def decode(data: bytes, path: str, *kinds: str) -> dict[str, Any]:
    """The body of a record of one of these kinds, or RecordError with the path and a way out."""
    start = len(_HEAD) + _DIGEST + len(_MIDDLE)
    raw = data[start : -len(_TAIL)]
    digest = data[len(_HEAD) : len(_HEAD) + _DIGEST]
    framed = _HEAD + digest + _MIDDLE + raw + _TAIL
    if framed != data or hashlib.sha256(raw).hexdigest().encode() != digest:
        raise damaged(path, "its checksum does not fit its content")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not JSON ({type(error).__name__})") from error
    if not isinstance(document, dict) or document.get("kind") not in kinds:
        raise damaged(path, f"it is not a {' or '.join(kinds)} record")
    if document.get("version") != VERSION:
        raise RecordError(
            f"{path} was written by a newer holdfast (record version {document.get('version')}, this one reads "
            f"{VERSION}): upgrade holdfast on this machine"
        )
    return document


def decode_with(fields: tuple[str, ...], data: bytes, path: str, kind: str) -> dict[str, Any]:
    """The body of a record that must have these fields."""
    document = decode(data, path, kind)
    missing = [field for field in fields if field not in document]
    if missing:
        raise damaged(path, f"its field {missing[0]!r} is missing")
    return document


def damaged(path: str, why: str) -> RecordError:
    """The error for a record that cannot be trusted."""
    return RecordError(
        f"{path} is damaged: {why}. Nothing was skipped and nothing was written. Restore this file from a copy of the "
        "checkpoint location; if there is none, start from a savepoint, or start a new checkpoint location under a "
        "new pipeline name"
    )


def record_to_body(record: Record) -> dict[str, Any]:
    """A decision slot's content as JSON data."""
    return {
        "checkpoint_id": record.checkpoint_id,
        "sinks": list(record.sinks),
        "committables": [
            {"sink": c.sink, "subtask": c.subtask, "data": c.data, "rows": c.rows, "bytes": c.bytes, "digest": c.digest}
            for c in record.committables
        ],
        "timestamp": record.timestamp,
        "state": dict(record.state),
        **({"resolution": dict(record.resolution)} if record.resolution else {}),
    }


def record_from_bytes(slot: Slot, data: bytes, path: str) -> Record:
    """The content of a decision slot."""
    document = decode(data, path, *RecordKind)
    try:
        committables = tuple(Committable(**c) for c in document["committables"])
        return Record(
            slot,
            RecordKind(document["kind"]),
            document["checkpoint_id"],
            tuple(document["sinks"]),
            committables,
            document["timestamp"],
            document["state"],
            document.get("resolution", {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"a field is missing or wrong ({error})") from error
