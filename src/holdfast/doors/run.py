"""One run of a query in the process beside the driver: the coordinator, the batch under way, the timer."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.sql.types import StructType

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.history import engine_position, log_location
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import EnginePosition, LoopTasks
from holdfast.checkpoint.prepare import undone
from holdfast.checkpoint.pulse import Pulse
from holdfast.checkpoint.shared import Proof, places_of
from holdfast.checkpoint.storage import open_storage
from holdfast.core.model import CheckpointId
from holdfast.core.passes import Passes
from holdfast.doors.groups import warn_of_groups
from holdfast.doors.handed import HandedBatch
from holdfast.doors.options import Plan, read_options
from holdfast.doors.orders import ZONE, Answer, TaskOrder
from holdfast.errors import EngineError, HoldfastError, StorageError
from holdfast.spark import private
from holdfast.spark.running import LAST_CALL, TICK
from holdfast.spark.sinks import schemas_of, with_letters
from holdfast.spark.stream import begin_run

logger = logging.getLogger("holdfast")


class DoorRun:
    """One generation. Every failure ends it: Spark's query ends with it, and the next one begins another."""

    def __init__(self, options: Mapping[str, str], schema: str) -> None:
        self._options, self._schema = dict(options), schema
        self._plan: Plan = read_options(options)
        plan = self._plan
        committed = self._position().committed
        self._planned()  # before a generation is claimed: what Spark writes elsewhere is not this pipeline's log
        sinks, self._letters = with_letters(plan.sinks, plan.dead_letters)
        storage = open_storage(log_location(plan.location))
        log = CheckpointLog(storage, plan.name, history_retain=plan.history_retain)
        self._coordinator = Coordinator(
            log,
            sinks,
            LoopTasks(),
            bounded=True,  # Spark tells nobody of the end of a query: so every batch ends with nothing left behind
            letters=self._letters,
            location=plan.location,
            trigger='format("holdfast")',
            **plan.settings,
        )
        self._pulse, self._passes = Pulse(log), Passes()
        whole = private.arrow_schema_of(StructType.fromJson(json.loads(schema)), ZONE)
        begin_run(self._coordinator, self._pulse, self._position, schemas_of(whole, sinks, {}, plan.dead_letters))
        self._warn_of_waiting(committed)
        self._places = places_of(sinks, storage.url)
        self._batch: HandedBatch | None = None
        #: the last batch that Spark was told to commit
        self._done: int | None = None
        self._closing, self._closed = threading.Lock(), False

    def _position(self) -> EnginePosition:
        return EnginePosition(*engine_position(self._plan.location))

    def _planned(self) -> CheckpointId:
        """The batch that Spark is about to run; it has written that down before it calls a data source."""
        planned = self._position().planned
        if planned is None:
            raise EngineError(
                f'Spark runs a batch, and {self._plan.location}/offsets names none: format("holdfast") must see what '
                "Spark writes there. Give checkpointLocation with its scheme (file:///..., s3a://...), as a location "
                "that the driver's machine reaches by the same name, or use hf.write_stream"
            )
        return planned

    def _warn_of_waiting(self, committed: CheckpointId | None) -> None:
        """Say what waited for rows (rule 7): Spark runs no batch again that it has committed, as of hf.write_stream."""
        waited = sorted(n for n in self._coordinator.inherited if committed is not None and n <= committed)
        if waited:
            logger.warning(
                "what an earlier run had decided and not delivered (%d checkpoints, the oldest is %d) has waited for "
                'rows until now and comes first: through format("holdfast") a query recovers with its first batch, as '
                "Spark calls no data source before. `holdfast status` shows what waits, and a start with "
                "hf.write_stream on a classic SparkSession delivers it at once",
                len(waited),
                waited[0],
            )

    @property
    def drain_timeout(self) -> float:
        """How long the end of a run waits for sinks."""
        seconds: float = self._plan.settings["drain_timeout"]
        return seconds

    @property
    def idle(self) -> bool:
        """Whether no batch is under way."""
        return self._batch is None

    def goes_on(self, options: Mapping[str, str], schema: str) -> bool:
        """Whether the batch that Spark plans is the next one of this very run, or one that may as well be."""
        if self._closed or self._batch is not None or (dict(options), schema) != (self._options, self._schema):
            return False
        found = self._position()
        return self._done is not None and (found.planned, found.committed) == (self._done + 1, self._done)

    # -- one batch --------------------------------------------------------------------------------------------------

    def begin(self) -> TaskOrder:
        """Before the tasks: sweep, make room, and say what they have to do."""
        planned, run = self._planned(), self._coordinator.run_info
        assert run is not None
        if self._done is None:
            warn_of_groups(self._plan.location, planned)
        self._batch = batch = HandedBatch(planned, run, self._passes, self._letters, self._prove)
        threading.Thread(target=self._run, args=(batch,), name=f"holdfast-batch-{planned}", daemon=True).start()
        return batch.order.result()

    def _run(self, batch: HandedBatch) -> None:
        try:
            self._coordinator.run(batch.checkpoint_id, batch)
        except BaseException as error:  # noqa: BLE001  raised by whoever waits for the batch
            batch.over.set_exception(error)
            if not batch.order.done():
                batch.order.set_exception(error)
        else:
            batch.over.set_result(None)

    def _prove(self) -> Proof | None:
        """In the first batch, tasks show that they see the folders that the driver sees."""
        return Proof(self._places) if self._done is None and self._places else None

    def commit(self, batch_id: int, answers: Sequence[Answer]) -> None:
        """All tasks have answered: decide, commit, and return when every sink has it all."""
        batch, run = self._batch, self._coordinator.run_info
        assert run is not None
        known = batch is not None and batch.checkpoint_id == batch_id and not batch.answers.done()
        if batch is None or not known or any(a.generation != run.generation for a in answers):
            raise EngineError(
                f"Spark commits batch {batch_id}, which another run of this query has begun: nothing is decided. Start "
                "the query again"
            )
        batch.answers.set_result(answers)
        batch.over.result()
        self._done, self._batch = batch_id, None

    def abort(self, why: HoldfastError) -> None:
        """The tasks of the batch under way will say nothing any more: undo what they prepared."""
        batch = self._batch
        if batch is not None and not batch.answers.done():
            batch.answers.set_exception(why)
            batch.over.exception(timeout=self.drain_timeout)

    def hurry(self) -> None:
        """A batch that waits for an endpoint waits no longer."""
        self._coordinator.hurry()

    # -- beside the batches -----------------------------------------------------------------------------------------

    def tick(self) -> HoldfastError | None:
        """The timer (rule 7); why the run cannot go on, if it cannot: `holdfast status` tells it at once."""
        failure: HoldfastError | None
        try:
            self._coordinator.tick()
            failure = self._coordinator.failure
        except Exception as error:
            logger.exception("the timer of the query at %s failed", self._plan.location)
            failure = EngineError(f"the timer of the query failed: {type(error).__name__}: {error}")
        try:
            if failure is None:
                self._pulse.beat(self._coordinator.deliveries)
            else:
                self._pulse.end(self._coordinator.deliveries, failure)
        except StorageError as error:
            logger.warning("the query's sign of life could not be written: %s", error)
        return failure

    def close(self, error: BaseException | None, *, finish: bool = False) -> None:
        """The run is over; with `finish`, sinks first complete what they hold back for later rows."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            left = EngineError("the run is over")  # takes the notes of what fails from here on
            if finish and error is None:
                deadline = time.monotonic() + self.drain_timeout
                while not self._coordinator.drain(TICK) and time.monotonic() < deadline:
                    pass
                error = self._coordinator.failure or self._coordinator.undelivered()
                if error is None:
                    undone(
                        [partial(self._coordinator.tell, LAST_CALL), partial(self._coordinator.finish, LAST_CALL)], left
                    )
            undone(
                [
                    partial(self._coordinator.close, LAST_CALL, sweep=error is not None),
                    lambda: self._pulse.end(self._coordinator.deliveries, error),
                ],
                left,
            )
            for note in getattr(left, "__notes__", ()):
                logger.warning("the end of the query at %s: %s", self._plan.location, note)
