"""Reports of what operators decided, and the rows they gave up: `reports/<checkpoint>.<sink>.json` and a folder (D4).

Rows are kept as Arrow IPC streams beside the report, each with its length and checksum, until somebody deletes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint import records
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.storage import Storage
from holdfast.core.model import CheckpointId, Committable
from holdfast.core.naming import escape
from holdfast.errors import ConfigError, RecordError

if TYPE_CHECKING:
    import pyarrow as pa

PRODUCE_ANYWAY, GIVE_UP, MARK_DELIVERED = "produce-anyway", "give-up", "mark-delivered"
_CHUNK = 1 << 20


def report_name(checkpoint_id: CheckpointId, sink: str) -> str:
    """Where the report of an operator's order is kept."""
    return f"{rows_folder(checkpoint_id, sink)}.json"


def rows_folder(checkpoint_id: CheckpointId, sink: str) -> str:
    """Where the rows of a report are kept."""
    return f"reports/{checkpoint_id}.{escape(sink)}"


def report_of(checkpoint_id: CheckpointId, sink: str, order: Mapping[str, Any]) -> dict[str, Any]:
    """What is known lost or doubled by an order, as the log has it."""
    done = bool(order.get("carried_out", order["how"] != PRODUCE_ANYWAY))
    known = order.get("expected", {}) if order["how"] != PRODUCE_ANYWAY else {}
    return {**order, "checkpoint_id": checkpoint_id, "sink": sink, "carried_out": done} | known


def write_report(log: CheckpointLog, body: Mapping[str, Any]) -> None:
    """Keep it; what an earlier order about the same checkpoint and sink left stays in it."""
    number, sink = body["checkpoint_id"], body["sink"]
    old = read_report(log.storage, number, sink)
    earlier: list[Any] = []
    if old is not None:
        earlier = list(old.pop("earlier", []))
        earlier += [] if old.get("id") == body.get("id") else [old]
    document = {**body, **({"earlier": earlier} if earlier else {})}
    log.storage.replace(report_name(number, sink), records.encode("report", records.new_nonce(), document))


def read_report(storage: Storage, checkpoint_id: CheckpointId, sink: str) -> dict[str, Any] | None:
    """The report about a checkpoint of a sink; None when there is none."""
    name = report_name(checkpoint_id, sink)
    try:
        body = records.decode(storage.read(name), f"{storage.url}/{name}", "report")
    except FileNotFoundError:
        return None
    return {key: value for key, value in body.items() if key not in ("kind", "version", "nonce")}


def kept_files(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The files with rows of a report: file, rows, bytes, sha256, subtask; those of earlier orders first."""
    return [file for order in (*report.get("earlier", ()), report) for file in order.get("files", ())]


def reported(storage: Storage, checkpoint_id: CheckpointId, sink: str | None) -> dict[str, Any]:
    """The one report that is meant, or the error that says which there are."""
    bodies = []
    for name in storage.names("reports"):
        body = records.decode(storage.read(f"reports/{name}"), f"{storage.url}/reports/{name}", "report")
        if body["checkpoint_id"] == checkpoint_id and sink in (None, body["sink"]):
            bodies.append(body)
    if len(bodies) == 1:
        return bodies[0]
    if bodies:
        names = ", ".join(f"--sink {body['sink']}" for body in bodies)
        raise ConfigError(f"checkpoint {checkpoint_id} has more than one report; name the sink: {names}")
    of = "" if sink is None else f" of sink {sink!r}"
    raise ConfigError(f"there is no report about checkpoint {checkpoint_id}{of}: `--reports` lists them all")


# -- rows ------------------------------------------------------------------------------------------------------------


def sealed(committable: Committable) -> bool:
    """Whether its rows are in a file of the log, and not prepared at the endpoint."""
    return isinstance(committable.data, Mapping) and isinstance(committable.data.get("handle"), str)


def keep_file(storage: Storage, folder: str, committable: Committable) -> dict[str, Any]:
    """Copy the rows of a sealed committable to the report; what is missing or damaged is told in `problem`."""
    data = committable.data
    source = str(data["handle"])
    told = {"subtask": committable.subtask, "rows": committable.rows, "source": source}
    target = f"{folder}/{source.rpartition('/')[2]}"
    try:
        size, digest = copy_file(storage, source, target)
    except FileNotFoundError:
        return {**told, "rows": 0, "problem": f"{storage.url}/{source} is missing: its rows could not be kept"}
    told |= {"file": target, "bytes": size, "sha256": digest, "data": dict(data)}
    if size != data.get("bytes", size) or digest != data.get("sha256", digest):
        told["problem"] = f"{storage.url}/{source} is damaged: it was copied as it is, its rows may not be readable"
    return told


def copy_file(storage: Storage, source: str, target: str) -> tuple[int, str]:
    """Copy a file of the log, durably; its length and checksum. What a killed attempt left is replaced."""
    digest, size = hashlib.sha256(), 0
    with storage.reader(source) as reading:
        storage.delete(target)
        with storage.writer(target) as writing:
            while chunk := reading.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                writing.write(chunk)
    return size, digest.hexdigest()


def keep_rows(storage: Storage, target: str, batches: Iterable[pa.RecordBatch]) -> dict[str, Any] | None:
    """Write rows that were read back from an endpoint into a file of the report; None when there are none."""
    import pyarrow as pa

    storage.delete(target)
    stream, rows = None, 0
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        return None
    with storage.writer(target) as file:
        stream = pa.ipc.new_stream(pa.PythonFile(file, mode="w"), first.schema)
        for batch in _chain(first, batches):
            stream.write_batch(batch)
            rows += batch.num_rows
        stream.close()
    size, digest = _checksum(storage, target)
    return {"file": target, "rows": rows, "bytes": size, "sha256": digest}


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _checksum(storage: Storage, name: str) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with storage.reader(name) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def read_rows(storage: Storage, report: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """The rows a report keeps; each file is checked whole before its first row is given out."""
    import pyarrow as pa

    for file in kept_files(report):
        if "file" not in file:
            continue
        path = f"{storage.url}/{file['file']}"
        try:
            found = _checksum(storage, file["file"])
        except FileNotFoundError:
            raise RecordError(f"{path} is missing: somebody deleted these rows of the report") from None
        if found != (file["bytes"], file["sha256"]):
            raise RecordError(f"{path} is damaged: its checksum does not fit. Restore it from a copy")
        with storage.reader(file["file"]) as reading, pa.ipc.open_stream(reading) as stream:
            yield from stream
