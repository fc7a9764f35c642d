"""What Cassandra says when replicas are away, in words: what may have been written, and whether it is sent again.

Everything holdfast writes carries its own write time, so that writing it once more changes nothing. A timeout of such a
write is therefore always tried again, whether or not the replicas took it.
"""

from __future__ import annotations

from typing import Any

_SENT_AGAIN = "it is sent again, which changes nothing: it has the same write time each time"
#: write type -> what its timeout means
_TIMEOUTS = {
    "SIMPLE": f"the row may be on some replicas, {_SENT_AGAIN}",
    "UNLOGGED_BATCH": f"rows of one partition, all or none of them on each replica, {_SENT_AGAIN}",
    "BATCH": f"the batch is in the log of the cluster and will be applied, {_SENT_AGAIN}",
    "BATCH_LOG": f"nothing was written, {_SENT_AGAIN}",
    "VIEW": f"the row, or its copy in a materialised view, may be on some replicas, {_SENT_AGAIN}",
    # These two are never sent by holdfast: a trigger, or a column that became a counter since the start.
    "COUNTER": "it may have been counted or not, and counting again could count twice: give the sink another table",
    "CAS": "a conditional write may have happened or not, and holdfast makes none: look at the table's triggers",
    "CDC": "the space for change data capture is full on a node: free cdc_raw there, or raise cdc_total_space",
}


def explain(error: Any) -> str | None:
    """The sentence for an answer about replicas, or for a node that gives none; None for any other error."""
    from cassandra import (
        OperationTimedOut,
        ReadFailure,
        ReadTimeout,
        Unavailable,
        WriteFailure,
        WriteTimeout,
        WriteType,
    )

    if isinstance(error, OperationTimedOut) and error.last_host is not None:
        return f"{error.last_host} gave no answer within `timeout`; it is asked again, which changes nothing"
    if isinstance(error, Unavailable):
        return (
            f"too few replicas are alive: consistency {level(error.consistency)} needs {error.required_replicas}, and "
            f"{error.alive_replicas} are; nothing was written"
        )
    if isinstance(error, WriteTimeout):
        kind = WriteType.value_to_name.get(error.write_type, str(error.write_type))
        meaning = _TIMEOUTS.get(kind, "it may have been written or not")
        return f"a write ({kind}) timed out, {_answered(error)}: {meaning}"
    if isinstance(error, ReadTimeout):
        return f"a read timed out, {_answered(error)}; it is asked again"
    if isinstance(error, WriteFailure | ReadFailure):
        what = "write" if isinstance(error, WriteFailure) else "read"
        return (
            f"{error.failures} replicas failed at a {what}, {_answered(error)}: their logs say why (a full disk, too "
            "many tombstones, a row over a limit of theirs)"
        )
    return None


def level(number: int | None) -> str:
    """The name of a consistency level."""
    from cassandra import ConsistencyLevel

    return str(ConsistencyLevel.value_to_name.get(number, number))


def _answered(error: Any) -> str:
    return (
        f"{error.received_responses} of the {error.required_responses} replicas that consistency "
        f"{level(error.consistency)} needs answered"
    )
