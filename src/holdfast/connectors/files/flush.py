"""Completing the files of a pipeline that does not run, from its log alone (F6)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.maintenance import maintain
from holdfast.checkpoint.ports import LoopTasks, Run
from holdfast.checkpoint.runs import note_command
from holdfast.checkpoint.storage import Storage
from holdfast.connectors.files.marks import Mark, read_marks
from holdfast.connectors.files.parts import Folder
from holdfast.connectors.files.sidecar import get_state
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.files.state import PartsState, is_state
from holdfast.sinks.fan import Fan, fanned
from holdfast.sinks.targets import states_of


@dataclass(frozen=True)
class Flushed:
    """What was completed for one sink."""

    sink: str
    path: str
    files: int
    rows: int


def waiting(log: CheckpointLog, lineage: str) -> dict[str, Any]:
    """Sink -> its state, for the file sinks of a loaded log that have decided rows in no committed file."""
    if log.last_decided is None:
        return {}
    saved = log.facts.decided[log.last_decided].state
    found = {}
    for name, data in saved.items():
        if any(_waits(log.pipeline, lineage, one, state) for one, state in states_of(name, data).items()):
            found[name] = data
    return found


def _waits(pipeline: str, lineage: str, name: str, state: Any) -> bool:
    if not is_state(state):
        return False
    folder = Folder(state["options"]["path"], pipeline, name)
    done = read_marks(folder).get(lineage, Mark()).roll
    return bool(PartsState.from_json(get_state(folder, state), f"sink {name!r}").unseen(done))


def flush(storage: Storage, pipeline: str, lineage: str) -> list[Flushed]:
    """Complete every file that waits for more rows. Claims a generation: a driver that still runs is fenced."""
    log = CheckpointLog(storage, pipeline)
    log.load()
    if not waiting(log, lineage):
        return []
    log.start()
    note_command(storage, log.generation, "flush")
    done = []
    for name, saved in waiting(log, log.lineage).items():
        sink = _sink(name, saved)
        sink.open(Run(log.pipeline, log.lineage, log.generation, storage.url, last_decided=log.last_decided))
        sink.initialize_state(saved)
        maintain(log, sink, LoopTasks(), time.time(), last=True)
        parts = sink.parts if isinstance(sink, Fan) else [sink]
        done += [Flushed(p.name, p.path, p.completed["files"], p.completed["rows"]) for p in parts if p.completed]
        sink.close()
    return done


def _sink(name: str, saved: Any) -> Any:
    """The sink that a state was saved by, as far as its last files need it."""
    one = next(state for state in states_of(name, saved).values() if is_state(state))["options"]
    path = saved.get("pattern", one["path"])
    return fanned(FileSink(path, one["format"], compression=one["compression"], name=name))
