"""Making a new checkpoint location from a savepoint: a lineage of its own that goes on where the savepoint ends (S5).

The log is written first and the offsets last, and a start refuses a log that is ahead of Spark's part: whoever is
killed in between leaves a location that cannot be started, and that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.checkpoint import enginefiles
from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.origin import Ahead, Further, Origin, check_provable, further_than
from holdfast.checkpoint.reader import LogReader
from holdfast.checkpoint.runs import note_command
from holdfast.checkpoint.savepoint import COPIERS, SPARK, Savepoint, copy, damaged, read_savepoint, verify
from holdfast.checkpoint.storage import open_storage
from holdfast.core.model import CheckpointId
from holdfast.core.naming import check_name
from holdfast.errors import CheckpointInUseError, ConfigError, HoldfastError, SavepointError, first_line


@dataclass(frozen=True)
class Beginning:
    """What a new location begins with."""

    location: str
    pipeline: str
    checkpoint_id: CheckpointId
    savepoint: str
    ahead: str
    #: sink -> what it has got since
    further: Mapping[str, Further] = field(default_factory=dict)
    #: why nobody knows what sinks have got since; the start of the query asks their ledgers
    unknown: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def told(further: Mapping[str, Further], checkpoint_id: CheckpointId) -> str:
    """In a sentence, by how much sinks are ahead."""
    parts = [f"sink {sink!r} has {f.checkpoints} checkpoints with {f.rows:,} rows" for sink, f in further.items()]
    return f"{', '.join(parts)} of what comes after checkpoint {checkpoint_id}"


def start_from(savepoint: str, location: str, *, name: str | None = None, ahead: Ahead = Ahead.REFUSE) -> Beginning:
    """Fill an empty checkpoint location from a savepoint; start a query on it as on any other."""
    found = read_savepoint(savepoint)
    pipeline = found.pipeline if name is None else check_name("name", name)
    location = location.rstrip("/")
    _require_empty(location)
    verify(found)
    further: dict[str, Further] = {}
    unknown, plan = None, None
    if pipeline == found.pipeline:
        further, unknown, plan = _compare(found, ahead)
    origin = Origin(found.pipeline, found.lineage, found.checkpoint_id, found.path, ahead, further)
    _write_log(location, pipeline, found, origin)
    _copy_engine(found, location, plan)
    return Beginning(location, pipeline, found.checkpoint_id, found.path, str(ahead), further, unknown)


def _require_empty(location: str) -> None:
    store = open_storage(location)
    there = [
        *store.names(""),
        *(f"{f}/" for f in ("offsets", "commits", "state", "sources", "holdfast") if store.walk(f)),
    ]
    if there:
        raise ConfigError(
            f"{location} is not empty ({there[0]}): a savepoint is started from in a location of its own. If an "
            "earlier start-from was interrupted there, delete it"
        )


def _compare(found: Savepoint, ahead: Ahead) -> tuple[dict[str, Further], str | None, bytes | None]:
    """What sinks have beyond the savepoint; why that is not known; for a skip, the offsets of the batch to prove."""
    log = LogReader(found.location)
    try:
        identity = log.identity()
        if identity.get("lineage") != found.lineage:
            raise ConfigError(f"{found.location} is gone, or another pipeline's by now")
        log.load()
        if log.damaged:
            raise ConfigError(log.damaged[0].problem)
    except HoldfastError as error:
        if ahead is Ahead.SKIP:
            raise SavepointError(f"nothing can be compared with what sinks have: {first_line(error)}") from error
        return {}, first_line(error), None
    owner = log.owner()
    if owner is not None and owner.alive:
        raise CheckpointInUseError(
            f"the pipeline {found.pipeline!r} runs in process {owner.pid} on {owner.host}, from {found.location}: two "
            "of one name would take the sinks from each other. Stop it, or give the new one a name of its own (--name)"
        )
    further = further_than(log, found.location, found.checkpoint_id)
    if not further:
        return {}, None, None
    if ahead is Ahead.REFUSE:
        raise SavepointError(
            f"sinks are ahead of the savepoint: {told(further, found.checkpoint_id)}. Choose --ahead redeliver (these "
            "rows are delivered again), --ahead skip (they are left out, if the replay proves equal), or --name for a "
            "pipeline of its own; or go on with the newest state, at "
            f"{found.location}"
        )
    return further, None, _merged(log, found, further) if ahead is Ahead.SKIP else None


def _merged(log: LogReader, found: Savepoint, further: Mapping[str, Further]) -> bytes:
    """One batch over everything that sinks have got since: from the savepoint's end to the end of the last of them."""
    check_provable(log, further)
    if found.spark_committed != found.checkpoint_id:
        raise SavepointError(
            "the savepoint was taken of a query that had died before Spark's commit of its last checkpoint, and Spark "
            "replays that one first: choose redeliver or refuse"
        )
    return merged_plan(found.location, log, found.checkpoint_id)


def merged_plan(location: str, log: CheckpointLog, checkpoint_id: CheckpointId) -> bytes:
    """The offsets file of one batch from the end of a checkpoint to the end of the last one that is decided."""
    source, last = open_storage(location), log.last_decided
    assert last is not None
    first = enginefiles.read_offsets(source, checkpoint_id + 1)
    return enginefiles.with_positions(first, enginefiles.read_offsets(source, last))


def _write_log(location: str, pipeline: str, found: Savepoint, origin: Origin) -> None:
    storage = open_storage(log_location(location))
    origin.write(storage)
    log = CheckpointLog(storage, pipeline)
    log.start()
    note_command(storage, log.generation, "savepoint")
    decided = found.decided
    number, sinks = found.checkpoint_id, [str(sink) for sink in decided["sinks"]]
    # Without committables: nothing is owed, and no ledger is expected to know of it (rule 15).
    log.decide(number, sinks, (), timestamp=int(decided["timestamp"]), state=decided["state"])
    for sink in sinks:
        log.record_commit(number, sink, {"outcome": "savepoint", "rows": 0, "bytes": 0, "subtasks": 0})


def _copy_engine(found: Savepoint, location: str, plan: bytes | None) -> None:
    source, target = open_storage(found.path), open_storage(location)
    later = open_storage(found.location) if plan is not None else None
    offsets = sorted(
        (n for n in found.files if n.startswith(f"{SPARK}/offsets/")), key=lambda n: int(n.rpartition("/")[2])
    )

    def bring(name: str) -> None:
        to = name.removeprefix(f"{SPARK}/")
        if to == enginefiles.METADATA:
            target.replace(to, enginefiles.new_identity())
        elif (later is None or not to.startswith("sources/")) and copy(source, target, name, to) != found.files[name]:
            raise damaged(found, name, "has changed while it was copied")

    with ThreadPoolExecutor(max_workers=COPIERS) as pool:
        list(pool.map(bring, [name for name in found.files if name not in offsets]))
    for name in offsets:  # one by one, the last one last: until then no start takes the location for whole
        bring(name)
    if later is not None and plan is not None:
        # A source that keeps a log of its own (files) must know what the batches since then have read.
        for name in later.walk("sources"):
            if not name.endswith(".crc"):
                copy(later, target, name, name)
        to = f"offsets/{found.checkpoint_id + 1}"
        target.delete(enginefiles.checksum_of(to))
        target.replace(to, plan)
