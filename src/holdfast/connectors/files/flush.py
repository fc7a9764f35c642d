"""Completing the files of a pipeline that does not run, from its log alone (F6)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import LoopTasks, Run
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.upkeep import keep_up
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.files.state import State, is_state


@dataclass(frozen=True)
class Flushed:
    """What was completed for one sink."""

    sink: str
    path: str
    files: int
    rows: int


def waiting(log: CheckpointLog) -> dict[str, State]:
    """Sink -> its state, for the file sinks of a loaded log that have decided rows in no committed file."""
    if log.last_decided is None:
        return {}
    saved = log.facts.decided[log.last_decided].state
    states = {name: State.from_json(data, f"sink {name!r}") for name, data in saved.items() if is_state(data)}
    return {name: state for name, state in states.items() if state.rows}


def flush(storage: Storage, pipeline: str) -> list[Flushed]:
    """Complete every file that waits for more rows. Claims a generation: a driver that still runs is fenced."""
    log = CheckpointLog(storage, pipeline)
    log.load()
    if not waiting(log):
        return []
    log.start()
    done = []
    for name in waiting(log):
        assert log.last_decided is not None
        saved = log.facts.decided[log.last_decided].state[name]
        options = saved["options"]
        sink = FileSink(options["path"], options["format"], compression=options["compression"], name=name)
        run = Run(log.pipeline, log.lineage, log.generation, storage.url, last_decided=log.last_decided)
        sink.open(run)
        sink.initialize_state(saved)
        keep_up(log, [sink], LoopTasks(), time.time(), last=True)
        done.append(Flushed(name, sink.path, sink.completed["files"], sink.completed["rows"]))
        sink.close()
    return [flushed for flushed in done if flushed.files]
