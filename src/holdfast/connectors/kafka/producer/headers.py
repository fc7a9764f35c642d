"""Rows with headers: librdkafka takes those one by one, so this is the slower way."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import RowError

#: The C structure rd_kafka_vu_t: a tag and the arguments that belong to it.
_ARGUMENT = np.dtype(
    {"names": ["tag", "first", "second"], "formats": ["i4", "u8", "u8"], "offsets": [0, 8, 16], "itemsize": 72}
)
_RKT, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADERS = 2, 3, 4, 5, 7, 10
_COPY = 0x2
NO_KEY = "a row has a header without a key: Kafka has no such thing; fill it in or filter it out"


def to_arguments(topic: int, messages: np.ndarray) -> np.ndarray:
    """One line of arguments for rd_kafka_produceva a message; its headers are filled in when it is sent."""
    lines = np.zeros((len(messages), 6), _ARGUMENT)
    lines["tag"] = (_RKT, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADERS)
    lines["first"][:, 0] = topic
    lines["first"][:, 1] = messages["partition"].astype(np.uint32)
    lines["first"][:, 2], lines["second"][:, 2] = messages["payload"], messages["len"]
    lines["first"][:, 3], lines["second"][:, 3] = messages["key"], messages["key_len"]
    lines["first"][:, 4] = _COPY
    return lines


def check_type(kind: pa.DataType) -> bool:
    """Spark's own: an array of structs of key (string) and value (binary)."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return set(fields) == {"key", "value"} and pa.types.is_string(fields["key"]) and pa.types.is_binary(fields["value"])


def check(column: pa.Array, where: str = "") -> None:
    """RowError for headers that Kafka could never take."""
    keys = pc.struct_field(pc.list_flatten(column), "key")
    if keys.null_count:
        raise RowError(f"{where}column 'headers': {NO_KEY}")
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RowError(f"{where}column 'headers': a header's key is not UTF-8: {error}") from error


def make(lib: ctypes.CDLL, headers: list[dict[str, Any]] | None) -> int:
    """A row's headers as librdkafka's object; whoever sends the row gives it away."""
    made = lib.rd_kafka_headers_new(len(headers or ()))
    for header in headers or ():
        name, value = header["key"], header["value"]
        if name is None:
            lib.rd_kafka_headers_destroy(made)
            raise RowError(NO_KEY)
        key = name.encode()
        lib.rd_kafka_header_add(made, key, len(key), value, 0 if value is None else len(value))
    return int(made)
