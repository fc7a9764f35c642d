"""The checkpoint location and holdfast's log in it."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.checkpoint import refusals
from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.storage import LocalStorage, open_storage
from holdfast.errors import UnsafeStorageError
from holdfast.pipeline.checks.registry import Problem, check, fatal, warning
from holdfast.pipeline.checks.situation import Situation
from holdfast.spark.shared import prove_shared

#: bytes: below the first a start is refused, below the second it is told
NO_ROOM, LITTLE_ROOM = 50 * 1024**2, 1024**3
#: names that every listing of ours passes over, and that are tidied up if we are killed
_TRIAL = ".tmp-check-{}"


@contextmanager
def leaving_nothing(folder: Path) -> Iterator[None]:
    """Folders that were not there before, and are empty, are removed at the end."""
    missing = []
    here = folder
    while not here.exists():
        missing.append(here)
        here = here.parent
    try:
        yield
    finally:
        for path in missing:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


@contextmanager
def untouched(location: str) -> Iterator[None]:
    """The same for a location, if it is on a local disk."""
    storage = open_storage(location)
    if isinstance(storage, LocalStorage):
        with leaving_nothing(storage.root):
            yield
    else:
        yield


def try_store(location: str) -> None:
    """Create a file only if it is absent, twice; the second must be told no. It is removed."""
    storage, name = open_storage(location), _TRIAL.format(uuid.uuid4().hex)
    with untouched(location):
        try:
            first, second = storage.create(name, b"holdfast check"), storage.create(name, b"a second writer")
        finally:
            storage.delete(name)
    if not first or second:
        raise UnsafeStorageError(
            f"{storage.url} does not honour 'create only if absent': two drivers could both decide a checkpoint there"
        )


@check(
    "log-store",
    remedy="Use a local disk of one machine, or an object store with conditional writes (S3 has them), and give this "
    "user the right to create, read, list and delete there",
)
def store(situation: Situation) -> Iterator[Problem]:
    """The checkpoint location can be written, and creates a file only if it is absent."""
    try_store(log_location(situation.location))
    yield from ()


@check(
    "log-lasting", remedy="Put it where a restart of the machine leaves it alone: /var/lib, a volume, an object store"
)
def lasting(situation: Situation) -> Iterator[Problem]:
    """The checkpoint location outlives a restart of the machine."""
    storage = open_storage(situation.location)
    places = {Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")}
    if isinstance(storage, LocalStorage) and any(place in storage.root.parents for place in places):
        yield warning(f"{storage.url} is in a folder for temporary files, which a restart may empty")


@check(
    "log-shared",
    remedy="Use storage that all machines reach by this path or URL: an object store, or a file system mounted on each",
)
def shared(situation: Situation) -> Iterator[Problem]:
    """Driver and executors see the same folders; on one machine they do."""
    location = log_location(situation.location)
    with untouched(location):
        prove_shared(situation.spark.sparkContext, situation.sinks, location)
    yield from ()


@check("log-room", remedy="Make room, or put the checkpoint location on a larger disk")
def room(situation: Situation) -> Iterator[Problem]:
    """The disk of the checkpoint location has room."""
    storage = open_storage(situation.location)
    if not isinstance(storage, LocalStorage):
        return
    folder = storage.root
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = f"{folder} has {free / 1e6:,.0f} MB left"
    lagging = [sink.name for sink in situation.sinks if sink.may_lag]
    why = f"; while an endpoint is away the rows of {', '.join(lagging)} wait there" if lagging else ""
    if free < NO_ROOM:
        yield fatal(text + why)
    elif free < LITTLE_ROOM:
        yield warning(text + why)


@check("log-same", remedy="Use the name and the checkpoint location of last time, or a new location under a new name")
def same(situation: Situation) -> Iterator[Problem]:
    """The checkpoint location is this pipeline's, and Spark's part and ours are of the same moment."""
    assert situation.run.pipeline  # its lineage names the pipeline it belongs to, or the location is new
    refusals.check_engine(situation.place.log, situation.place.engine, adopt=situation.takes_over)
    yield from ()


@check(
    "log-sinks", remedy="Start once more with that sink and let it catch up; or give its rows up with holdfast resolve"
)
def sinks(situation: Situation) -> Iterator[Problem]:
    """Every sink that is owed rows is in the pipeline."""
    if situation.place.used:
        refusals.check_sinks(situation.place.log, [sink.name for sink in situation.sinks])
    yield from ()


@check("log-records", remedy="Restore the checkpoint location from a copy; holdfast status names what is damaged")
def records(situation: Situation) -> Iterator[Problem]:
    """No record of the log is damaged or missing."""
    if situation.place.used:
        for damage in situation.place.log.damaged:
            yield fatal(f"{damage.path}: {damage.problem}")


@check("log-stuck", remedy="See holdfast resolve: it shows the checkpoint, why it is stuck and the ways out")
def stuck(situation: Situation) -> Iterator[Problem]:
    """No checkpoint waits for an operator."""
    if situation.place.used:
        for finding in situation.place.log.stuck():
            yield warning(f"checkpoint {finding.checkpoint_id} of sink {finding.sink!r} could not be committed")


@check("log-driver", remedy="Stop the other driver first: a start here takes the pipeline over from it")
def driver(situation: Situation) -> Iterator[Problem]:
    """No other driver runs this pipeline from this checkpoint location."""
    owner = situation.place.log.owner() if situation.place.used and situation.run.lineage else None
    if owner is not None and owner.alive:
        yield warning(f"process {owner.pid} on {owner.host} runs it (generation {owner.generation}, {owner.state})")


@check("log-backlog", remedy="Bring the endpoint back and let it catch up, or raise max_pending or max_pending_bytes")
def backlog(situation: Situation) -> Iterator[Problem]:
    """No sink has as much undelivered as it allows."""
    if situation.place.used:
        for name, full in refusals.full_backlogs(situation.place.log, situation.sinks).items():
            yield warning(f"sink {name!r} has {full.much}")
