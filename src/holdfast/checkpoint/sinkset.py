"""The sinks of one run: opened and closed together, and their states restored and saved together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import Run, Sink
from holdfast.checkpoint.records import check_plain
from holdfast.core.model import CheckpointId
from holdfast.errors import LineageError


class SinkSet:
    """Which of them are open, and what is known of sinks that are no longer among them."""

    def __init__(self, log: CheckpointLog, sinks: Sequence[Sink], delivery: str) -> None:
        self._log, self._sinks, self._delivery = log, sinks, delivery
        self.opened: list[Sink] = []
        #: state of sinks that are no longer in the pipeline: kept, it may be all that knows of their rows
        self._unclaimed: dict[str, Any] = {}

    def open(self, schema: Any, *, may_take_over: bool) -> Run:
        """Open every sink; on a take-over, give this location a new lineage so that old ledgers are set aside."""
        try:
            return self._open(schema, take_over=False)
        except LineageError:
            if not may_take_over:
                raise
            self.close()
            self._log.replace_lineage()
            return self._open(schema, take_over=True)

    def _open(self, schema: Any, *, take_over: bool) -> Run:
        log, mode = self._log, self._delivery
        run = Run(log.pipeline, log.lineage, log.generation, log.storage.url, mode, log.last_decided, take_over, schema)
        for sink in self._sinks:
            sink.open(run)
            self.opened.append(sink)
        # Here, since a state too can show that this checkpoint location is an old copy.
        self._restore_state()
        return run

    def close(self) -> None:
        """Close those that are open, the last one first."""
        opened, self.opened = self.opened, []
        each(lambda sink: sink.close(), reversed(opened))

    def _restore_state(self) -> None:
        last = self._log.last_decided
        saved = {} if last is None else self._log.facts.decided[last].state
        self._unclaimed = {k: v for k, v in saved.items() if k not in {sink.name for sink in self._sinks}}
        for sink in self._sinks:
            sink.initialize_state(saved.get(sink.name))

    def snapshot(self, checkpoint_id: CheckpointId) -> dict[str, Any]:
        """The operator state to be decided with a checkpoint."""
        states = {
            sink.name: check_plain(f"sink {sink.name!r}: snapshot_state", sink.snapshot_state(checkpoint_id))
            for sink in self._sinks
        }
        return self._unclaimed | {name: state for name, state in states.items() if state is not None}


def each(do: Callable[[Sink], None], sinks: Iterable[Sink]) -> None:
    """Do it for every sink, even if one of them raises; then raise the first error."""
    errors = []
    for sink in sinks:
        try:
            do(sink)
        except Exception as error:  # noqa: BLE001  raised below
            errors.append(error)
    if errors:
        raise errors[0]
