"""librdkafka's C interface, as far as it is used here.

The library is the one inside confluent-kafka's package; no second copy is loaded.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

import numpy as np

from holdfast.errors import MissingExtraError

#: The C structure rd_kafka_message_t, as an array of which a batch is handed over.
MESSAGE = np.dtype(
    {
        "names": ["err", "rkt", "partition", "payload", "len", "key", "key_len", "offset", "private"],
        "formats": ["i4", "u8", "i4", "u8", "u8", "u8", "u8", "i8", "u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)
PARTITION_UA = -1
_UNKNOWN = -2
DELIVERY = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
STATISTICS = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)
LOG = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)


class TopicPartition(ctypes.Structure):
    """The C structure rd_kafka_topic_partition_t."""

    _fields_ = [
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("private", c_void_p),
    ]


class MetadataTopic(ctypes.Structure):
    """The C structure rd_kafka_metadata_topic."""

    _fields_ = [("topic", c_char_p), ("partition_cnt", c_int), ("partitions", c_void_p), ("err", c_int)]


class Metadata(ctypes.Structure):
    """The C structure rd_kafka_metadata."""

    _fields_ = [
        ("broker_cnt", c_int),
        ("brokers", c_void_p),
        ("topic_cnt", c_int),
        ("topics", POINTER(MetadataTopic)),
        ("orig_broker_id", c_int32),
        ("orig_broker_name", c_char_p),
    ]


@cache
def library() -> ctypes.CDLL:
    """librdkafka, with the signatures used here."""
    try:
        import confluent_kafka.cimpl as cimpl
    except ImportError as error:
        raise MissingExtraError("Kafka needs more packages: pip install 'holdfast[kafka]'") from error
    lib = ctypes.CDLL(cimpl.__file__)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_conf_new": (c_void_p, []),
        "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
        "rd_kafka_conf_set_dr_msg_cb": (None, [c_void_p, DELIVERY]),
        "rd_kafka_conf_set_stats_cb": (None, [c_void_p, STATISTICS]),
        "rd_kafka_conf_set_log_cb": (None, [c_void_p, LOG]),
        "rd_kafka_set_log_queue": (c_int, [c_void_p, c_void_p]),
        "rd_kafka_conf_destroy": (None, [c_void_p]),
        "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
        "rd_kafka_destroy": (None, [c_void_p]),
        "rd_kafka_poll": (c_int, [c_void_p, c_int]),
        "rd_kafka_flush": (c_int, [c_void_p, c_int]),
        "rd_kafka_purge": (c_int, [c_void_p, c_int]),
        "rd_kafka_outq_len": (c_int, [c_void_p]),
        "rd_kafka_err2str": (c_char_p, [c_int]),
        "rd_kafka_topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
        "rd_kafka_topic_destroy": (None, [c_void_p]),
        "rd_kafka_produce_batch": (c_int, [c_void_p, c_int32, c_int, c_void_p, c_int]),
        "rd_kafka_produceva": (c_void_p, [c_void_p, c_void_p, c_size_t]),
        "rd_kafka_msg_partitioner_murmur2": (
            c_int32,
            [c_void_p, c_void_p, c_size_t, c_int32, c_void_p, c_void_p],
        ),
        "rd_kafka_headers_new": (c_void_p, [c_size_t]),
        "rd_kafka_headers_destroy": (None, [c_void_p]),
        "rd_kafka_header_add": (c_int, [c_void_p, c_char_p, ctypes.c_ssize_t, c_char_p, ctypes.c_ssize_t]),
        "rd_kafka_metadata": (c_int, [c_void_p, c_int, c_void_p, c_void_p, c_int]),
        "rd_kafka_metadata_destroy": (None, [c_void_p]),
        "rd_kafka_init_transactions": (c_void_p, [c_void_p, c_int]),
        "rd_kafka_begin_transaction": (c_void_p, [c_void_p]),
        "rd_kafka_abort_transaction": (c_void_p, [c_void_p, c_int]),
        "rd_kafka_commit_transaction": (c_void_p, [c_void_p, c_int]),
        "rd_kafka_send_offsets_to_transaction": (c_void_p, [c_void_p, c_void_p, c_void_p, c_int]),
        "rd_kafka_consumer_group_metadata_new": (c_void_p, [c_char_p]),
        "rd_kafka_consumer_group_metadata_destroy": (None, [c_void_p]),
        "rd_kafka_topic_partition_list_new": (c_void_p, [c_int]),
        "rd_kafka_topic_partition_list_add": (c_void_p, [c_void_p, c_char_p, c_int32]),
        "rd_kafka_topic_partition_list_destroy": (None, [c_void_p]),
        "rd_kafka_error_code": (c_int, [c_void_p]),
        "rd_kafka_error_string": (c_char_p, [c_void_p]),
        "rd_kafka_error_destroy": (None, [c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def takes(key: str) -> bool:
    """Whether librdkafka has a setting of this name."""
    lib, problem = library(), ctypes.create_string_buffer(512)
    conf = lib.rd_kafka_conf_new()
    try:
        return bool(lib.rd_kafka_conf_set(conf, key.encode(), b"", problem, len(problem)) != _UNKNOWN)
    finally:
        lib.rd_kafka_conf_destroy(conf)


def of_long_key(key: int, length: int, partitions: int) -> int:
    """The partition of one key, by its address."""
    return int(library().rd_kafka_msg_partitioner_murmur2(None, key, length, partitions, None, None))
