"""How large rows and values may be: what the cluster says, else Cassandra's defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.committers.cassandra_client import Client

#: bytes of a mutation when the cluster does not say: half of Cassandra's default commit log segment
MUTATION = 16 * 1024**2
#: Cassandra's limit for the bytes of a partition key, of a clustering value, of a key inside a collection
LONGEST_KEY = 65535
_SETTINGS = "SELECT name, value FROM system_views.settings"
_INDEXES = "SELECT kind, options FROM system_schema.indexes WHERE keyspace_name = ? AND table_name = ?"
_VIEWS = "SELECT view_name, base_table_name FROM system_schema.views WHERE keyspace_name = ?"
_KEY = "SELECT column_name, kind, position FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?"
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB)?")
_UNITS = {None: 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_TARGET = re.compile(r'(?:\w+\()?"?(.*?)"?\)?')


@dataclass(frozen=True)
class Limits:
    """Bytes, unless said otherwise; None: no limit."""

    #: of one row, as the servers write it to their log and as they take it from the network
    mutation: int = MUTATION
    #: of one value
    value: int | None = None
    #: of one collection
    collection: int | None = None
    #: elements of one collection
    items: int | None = None


@dataclass(frozen=True)
class Indexed:
    """What an index or a view asks of a column's values."""

    longest: int
    not_empty: bool = False


def read_limits(client: Client, mutation: int | None) -> Limits:
    """Ask the server; `mutation` is the user's own limit, which counts if it is smaller or the server does not say."""
    settings = _settings(client)
    known = [mutation or MUTATION] if not settings or mutation else []
    for name in ("max_mutation_size", "native_transport_max_message_size", "native_transport_max_frame_size"):
        known += [size for size in [_size(settings, name)] if size]
    segment = _size(settings, "commitlog_segment_size")
    known += [segment // 2] if segment else []
    return Limits(
        min(known, default=mutation or MUTATION),
        _size(settings, "column_value_size_fail_threshold"),
        _size(settings, "collection_size_fail_threshold"),
        _size(settings, "items_per_collection_fail_threshold"),
    )


def read_indexed(client: Client, keyspace: str, table: str) -> dict[str, Indexed]:
    """The columns that an index or a materialised view copies, where the limits of keys hold for their values."""
    found: dict[str, Indexed] = {}
    indexes = client.query(_INDEXES, (keyspace, table))
    term = _size(_settings(client), "sai_string_term_size_fail_threshold") if indexes else None
    for index in indexes:
        match = _TARGET.fullmatch(index.options.get("target", ""))
        if match:
            storage_attached = "sai" in index.options.get("class_name", "").lower().replace("storageattached", "sai")
            # A value of 65,535 bytes is refused, although the message says that this is allowed.
            longest = term or LONGEST_KEY if storage_attached else LONGEST_KEY - 1
            found[match[1].replace('""', '"')] = Indexed(longest)
    for view in client.query(_VIEWS, (keyspace,)):
        if view.base_table_name == table:
            key = [row for row in client.query(_KEY, (keyspace, view.view_name)) if row.position >= 0]
            alone = sum(row.kind == "partition_key" for row in key) == 1
            for row in key:
                not_empty = alone and row.kind == "partition_key"
                found[row.column_name] = Indexed(LONGEST_KEY - 1, not_empty)
    return found


def _settings(client: Client) -> Mapping[str, str]:
    """None before Cassandra 4.0, and not for every user."""
    from cassandra import InvalidRequest, Unauthorized

    try:
        return {row.name: row.value for row in client.query(_SETTINGS) if row.value is not None}
    except (InvalidRequest, Unauthorized):
        return {}


def _size(settings: Mapping[str, str], name: str) -> int | None:
    """A setting in bytes; older versions have the unit in its name."""
    for suffix, unit in (("", 1), ("_in_kb", 1024), ("_in_mb", 1024**2), ("_in_bytes", 1)):
        match = _SIZE.fullmatch(settings.get(name + suffix, ""))
        if match and int(match[1]):
            return int(match[1]) * _UNITS[match[2]] * unit
    return None
