"""From rows to a checkpoint that may be decided: run the tasks, check what they prepared, undo it if one failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.bad_rows import Letters, check
from holdfast.checkpoint.dead import Replays
from holdfast.checkpoint.guard import described, guarded
from holdfast.checkpoint.ports import Batch, Run, SubtaskReport, Tasks
from holdfast.checkpoint.retrying import Retrying
from holdfast.checkpoint.sinkset import SinkSet
from holdfast.core.model import CheckpointId, Committable
from holdfast.errors import ConfigError, EngineError, NotPreparedError, RowError, SinkError, first_line

logger = logging.getLogger("holdfast")
#: Prepared work of an endpoint without a timeout is asked for again when the tasks took longer than this, in seconds.
COULD_BE_GONE = 30.0
#: How often a batch runs again because an endpoint dropped what its tasks had prepared.
RERUNS = 2
#: For how many checkpoints after one with refused rows tasks look for such rows at once, instead of in a second run.
CAREFUL = 10


@dataclass(frozen=True)
class Prepared:
    """What all tasks together have prepared."""

    reports: Sequence[SubtaskReport]
    committables: Sequence[Committable]
    state: Mapping[str, Any]


class Preparation:
    """Prepares checkpoints of one run."""

    def __init__(
        self,
        sinks: SinkSet,
        tasks: Tasks,
        *,
        retrying: Retrying,
        undo: Callable[[CheckpointId, BaseException], None],
        letters: Letters | None = None,
        replays: Replays | None = None,
    ) -> None:
        self._set, self._sinks, self._tasks = sinks, sinks.sinks, tasks
        self._retrying, self._clock, self._undo = retrying, retrying.clock, undo
        self._letters, self._replays = letters, replays
        #: for so many checkpoints more, tasks look for rows that sinks refuse from the start
        self._careful = 0

    def run(self, run: Run, checkpoint_id: CheckpointId, batch: Batch, started: int) -> Prepared:
        """Run the tasks, again while an endpoint is away (until `retry` is over) or drops what they prepared."""

        def once() -> Prepared:
            try:
                return self._once(run, checkpoint_id, batch, started)
            except BaseException as error:
                self._undo(checkpoint_id, error)
                raise

        return self._retrying.run(f"checkpoint {checkpoint_id} is not decided, its tasks run again", once, _worth_it)

    def _write(self, run: Run, checkpoint_id: CheckpointId, batch: Batch, started: int) -> Sequence[SubtaskReport]:
        """Run the tasks; when a sink refuses rows, once more to find them: to set them aside, or to count them."""
        careful = self._careful > 0
        try:
            return batch.write(run, self._sinks, checkpoint_id, started, careful=careful)
        except RowError as error:
            if careful:
                raise
            self._undo(checkpoint_id, error)
            logger.info("checkpoint %d has bad rows, its tasks look for them: %s", checkpoint_id, first_line(error))
        return batch.write(run, self._sinks, checkpoint_id, started, careful=True)

    def _once(self, run: Run, checkpoint_id: CheckpointId, batch: Batch, started: int) -> Prepared:
        began = self._clock()
        reports = list(self._write(run, checkpoint_id, batch, started))
        if self._replays is not None:
            reports += self._replays.write(run, checkpoint_id, started, reports)
        check(checkpoint_id, reports, self._letters)
        self._careful = CAREFUL if any(report.refused for report in reports) else max(0, self._careful - 1)
        committables = [c for report in reports for c in report.committables]
        self._check_names(committables)
        for sink in self._sinks:
            mine = [c.data for c in committables if c.sink == sink.name]
            if mine:
                with guarded(sink, "validate"):
                    sink.validate(checkpoint_id, mine, self._tasks)
        state = self._set.snapshot(checkpoint_id)
        if self._replays is not None:
            state |= self._replays.state(checkpoint_id)
        self._ask_again(checkpoint_id, committables, self._clock() - began)
        return Prepared(reports, committables, state)

    def _check_names(self, committables: Sequence[Committable]) -> None:
        """What is decided for a sink that nobody commits would be lost without a word."""
        strange = {c.sink for c in committables} - {sink.name for sink in self._sinks}
        if strange:
            raise ConfigError(
                f"tasks prepared rows for sink {sorted(strange)[0]!r}, but this pipeline's sinks are "
                f"{', '.join(sink.name for sink in self._sinks)}: a sink must have the same name on the driver and in "
                "tasks. Set it once, in __init__ or as name = ... in its class"
            )

    def _ask_again(self, checkpoint_id: CheckpointId, committables: Sequence[Committable], elapsed: float) -> None:
        """Rule 14: what an endpoint has dropped by now costs a second run; after the decision it costs a repair."""
        for sink in self._sinks:
            timeout = sink.transaction_timeout
            if elapsed < (COULD_BE_GONE if timeout is None else 0.8 * timeout):
                continue
            mine = [c.data for c in committables if c.sink == sink.name]
            with guarded(sink, "looking for prepared work"):
                held = list(sink.still_prepared(mine)) if mine else mine
            gone = [data for data in mine if data not in held]
            if gone:
                raise NotPreparedError(
                    f"{described(sink)} dropped {len(gone)} of {len(mine)} prepared pieces of checkpoint "
                    f"{checkpoint_id} before it was decided, {elapsed:.0f} s after its tasks began. Nothing is lost, "
                    "the batch runs again. If it happens often, raise the endpoint's timeout or make batches smaller"
                )


def undone(steps: Sequence[Callable[[], Any]], error: BaseException) -> None:
    """Do all of it; what fails is attached to the error that is on its way up, and must not hide it."""
    for step in steps:
        try:
            step()
        except Exception as problem:  # noqa: BLE001  attached to the error that is on its way up
            error.add_note(f"while cleaning up after it: {type(problem).__name__}: {problem}")


def _worth_it(error: BaseException, failures: int, in_time: bool) -> bool:
    if isinstance(error, NotPreparedError):
        return failures <= RERUNS
    return isinstance(error, (SinkError, EngineError)) and error.again and in_time
