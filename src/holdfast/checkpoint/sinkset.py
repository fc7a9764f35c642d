"""The sinks of one run: opened and closed together, and their states restored and saved together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.checkpoint.guard import guarded, wrapped
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.origin import Origin
from holdfast.checkpoint.ports import Run, Sink
from holdfast.checkpoint.records import check_plain
from holdfast.checkpoint.refusals import check_take_over
from holdfast.core.model import CheckpointId
from holdfast.errors import ForeignLineageError, LineageError

#: does something with a sink, again while its endpoint is away: what, how, which
Again = Callable[[str, Callable[[], Any], Sink], None]


class SinkSet:
    """Which of them are open, and what is known of sinks that are no longer among them."""

    def __init__(self, log: CheckpointLog, sinks: Sequence[Sink], delivery: str) -> None:
        self._log, self.sinks, self._delivery = log, sinks, delivery
        self.opened: list[Sink] = []
        #: state of sinks that are no longer in the pipeline: kept, it may be all that knows of their rows
        self._unclaimed: dict[str, Any] = {}
        self._may_take_over = False

    def open(self, schema: Any, *, may_take_over: bool, again: Again, origin: Origin | None = None) -> Run:
        """Open every sink; on a take-over, give this location a new lineage so that old ledgers are set aside.

        `schema` is that of all sinks' rows, or a mapping with one for each sink. With an `origin` from which nothing
        was decided yet, ledgers may be the origin's, as far as was agreed on.
        """
        self._may_take_over = may_take_over
        if self._log.taking_over:  # a driver died in the middle of it; nothing was delivered under this lineage yet
            return self._open(schema, again, take_over=True)
        try:
            return self._open(schema, again, take_over=False)
        except LineageError as error:
            if not may_take_over:
                if origin is None or origin.checkpoint_id != self._log.last_decided:
                    raise
                self.close()
                self._follow(origin, schema, again)
            self.close()
            if self._delivery == "exactly-once":
                check_take_over(self._log, error)
            # Their late tasks may prepare more, which nobody else undoes.
            self._log.replace_lineage(error.ledger if isinstance(error, ForeignLineageError) else ())
            return self._open(schema, again, take_over=True)

    def _follow(self, origin: Origin, schema: Any, again: Again) -> None:
        """Look at every sink's ledger before the first is set aside: one that has too much forbids it for all."""
        run = self._run(schema, take_over=False)
        for sink in self.sinks:
            try:
                self._open_one(sink, run, schema, again)
                if getattr(sink, "has_targets", False):  # only its state says which ledgers there are
                    sink.initialize_state(self._saved.get(sink.name))
            except ForeignLineageError as error:
                origin.check(sink.name, error)
        self.close()

    def _run(self, schema: Any, *, take_over: bool) -> Run:
        log, mode = self._log, self._delivery
        return Run(
            log.pipeline, log.lineage, log.generation, log.storage.url, mode, log.last_decided, take_over,
            None if isinstance(schema, Mapping) else schema, log.committed(), log.set_aside, self._may_take_over,
        )  # fmt: skip

    def _open_one(self, sink: Sink, run: Run, schema: Any, again: Again) -> None:
        of_sinks = schema if isinstance(schema, Mapping) else {}
        own = replace(run, schema=of_sinks.get(sink.name, run.schema))
        again("start", lambda: sink.open(own), sink)
        self.opened.append(sink)

    def _open(self, schema: Any, again: Again, *, take_over: bool) -> Run:
        run = self._run(schema, take_over=take_over)
        for sink in self.sinks:
            self._open_one(sink, run, schema, again)
        # Here, since a state too can show that this checkpoint location is an old copy.
        self._restore_state(again)
        return run

    def close(self, stuck: Collection[str] = (), close: Callable[[Sink], bool] | None = None) -> list[str]:
        """Close those that are open, the last one first, but none that is still busy with its endpoint.

        `close` says whether one has closed; the names of those that have not.
        """
        opened, self.opened = self.opened, []
        errors, hanging = [], []
        for sink in reversed([sink for sink in opened if sink.name not in stuck]):
            try:
                if close is None:
                    sink.close()
                elif not close(sink):
                    hanging.append(sink.name)
            except Exception as error:  # noqa: BLE001  raised below, when all had their turn
                errors.append(wrapped(sink, "close", error))
        if errors:
            raise errors[0]
        return hanging

    @property
    def _saved(self) -> Mapping[str, Any]:
        """The operator states of the newest decided checkpoint."""
        last = self._log.last_decided
        return {} if last is None else self._log.facts.decided[last].state

    def _restore_state(self, again: Again) -> None:
        saved = self._saved
        self._unclaimed = {k: v for k, v in saved.items() if k not in {sink.name for sink in self.sinks}}
        for sink in self.sinks:
            state = saved.get(sink.name)
            again("restoring its state", lambda s=sink, x=state: s.initialize_state(x), sink)  # type: ignore[misc]

    def snapshot(self, checkpoint_id: CheckpointId) -> dict[str, Any]:
        """The operator state to be decided with a checkpoint."""
        states = {}
        for sink in self.sinks:
            with guarded(sink, "saving its state"):
                state = sink.snapshot_state(checkpoint_id)
            states[sink.name] = check_plain(f"sink {sink.name!r}: snapshot_state", state)
        return self._unclaimed | {name: state for name, state in states.items() if state is not None}
