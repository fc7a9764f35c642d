"""A micro-batch whose tasks Spark runs by itself: the coordinator asks for it as for any other, and waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NoReturn

from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.ports import Run, SubtaskReport
from holdfast.checkpoint.shared import Proof
from holdfast.core.model import CheckpointId
from holdfast.core.passes import Attempt, Passes
from holdfast.core.repair import Replayed
from holdfast.doors.orders import Answer, TaskOrder, reports_of
from holdfast.errors import EngineError
from holdfast.sinks.two_phase import TwoPhaseCommitSink


class HandedBatch:
    """See holdfast.checkpoint.ports.Batch. Its rows come once: Spark runs the tasks a single time."""

    def __init__(
        self,
        checkpoint_id: CheckpointId,
        run: Run,
        passes: Passes,
        letters: Letters | None,
        prove: Callable[[], Proof | None],
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self._run, self._passes, self._letters, self._prove = run, passes, letters, prove
        #: what tasks are told, once the coordinator wants them to run
        self.order: Future[TaskOrder] = Future()
        #: what they said, or why there will be nothing
        self.answers: Future[Sequence[Answer]] = Future()
        #: the coordinator is done with it
        self.over: Future[None] = Future()

    def write(
        self,
        run: Run,
        sinks: Sequence[TwoPhaseCommitSink],
        checkpoint_id: CheckpointId,
        timestamp: int,
        *,
        only: Collection[int] | None = None,
        repair: int = 0,
        careful: bool = False,
    ) -> list[SubtaskReport]:
        """Let Spark's tasks write; with dead letters they look for bad rows at once, as there is no second run."""
        if only is not None or repair:
            self._refuse("produce lost rows again")
        if self.order.done():
            raise EngineError(
                f'the tasks of checkpoint {checkpoint_id} would have to run again, and through format("holdfast") '
                "they run once. Nothing is decided: start the query again, and Spark runs the batch again"
            )
        number, won = self._passes.begin(), None
        careful = careful or self._letters is not None
        order = TaskOrder(run, checkpoint_id, timestamp, tuple(sinks), self._letters, careful, number)
        proof = self._prove()
        try:
            if proof is None:
                won = self._tasks(order)
            else:
                with proof:
                    won = self._tasks(replace(order, look=proof.look))
                    proof.check([answer.seen for answer in won if answer.seen is not None])
        finally:
            # Whether Spark has run the whole stage a second time cannot be known here: so no number is used twice soon.
            self._passes.end(number, None if won is None else [Attempt(*a.attempt, first_stage=False) for a in won])
        return reports_of(won)

    def drain(self) -> None:
        """The batch is decided: let Spark's tasks read their rows, and do nothing with them."""
        self._tasks(TaskOrder(self._run, self.checkpoint_id))

    def digests(self, sink: str) -> list[Replayed]:
        """Not possible: what is read once to be compared could not be written after that."""
        self._refuse(f"compare its rows with what sink {sink!r} has lost")

    def _tasks(self, order: TaskOrder) -> Sequence[Answer]:
        self.order.set_result(order)
        return self.answers.result()

    def _refuse(self, what: str) -> NoReturn:
        raise EngineError(
            f"checkpoint {self.checkpoint_id} is decided and an endpoint has dropped rows of it. To {what}, its batch "
            'must run more than once, which Spark does not do for format("holdfast"): start the query with '
            "hf.write_stream, with the same name, checkpoint location and sinks, until this checkpoint is complete; "
            "or decide with `holdfast resolve`"
        )
