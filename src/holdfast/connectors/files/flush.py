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
        if not is_state(data):
            continue
        folder = Folder(data["options"]["path"], log.pipeline, name)
        marks = read_marks(folder)
        if PartsState.from_json(get_state(folder, data), f"sink {name!r}").unseen(marks.get(lineage, Mark()).roll):
            found[name] = data
    return found


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
        options = saved["options"]
        sink = FileSink(options["path"], options["format"], compression=options["compression"], name=name)
        sink.open(Run(log.pipeline, log.lineage, log.generation, storage.url, last_decided=log.last_decided))
        sink.initialize_state(saved)
        maintain(log, sink, LoopTasks(), time.time(), last=True)
        done.append(Flushed(name, sink.path, sink.completed["files"], sink.completed["rows"]))
        sink.close()
    return done
