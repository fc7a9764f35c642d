"""A sink whose table or folder is a pattern over columns: one sink of its kind for each name, in one decision.

The sink that the user made is the template; `for_target` makes the sink of one name, which is known at the endpoint
as `<name of the sink>#<target>`, with a ledger of its own. Names are met in tasks, and an endpoint has to be prepared
for a new one by the driver: a task that meets one writes nothing and reports it, the driver opens all that were met,
before the decision, and the tasks run once more. So a new name costs one more run of its batch, once.

The operator state has every name, so that a start recovers and checks each of them (rules 15 and 16), and a committable
says for each name what its sink's commit needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Committed, Run, Tasks
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Outcome
from holdfast.errors import ConfigError, LineageError, LostError, NotPreparedError, first_line
from holdfast.sinks.fan_tasks import FanTasks
from holdfast.sinks.schema_change import DISCARD
from holdfast.sinks.targets import by_target, target_name
from holdfast.sinks.two_phase import TwoPhaseCommitSink

#: checkpoints of a target that its state remembers: what is decided may be committed one or two checkpoints later
_REMEMBERED = 3


def fanned(sink: TwoPhaseCommitSink) -> TwoPhaseCommitSink:
    """The sink itself, or what fans it out when it has a pattern."""
    if sink.pattern is None or not sink.fans_out:
        return sink
    if getattr(sink, "schema_change", None) == DISCARD:
        raise ConfigError(
            f"sink {sink.name!r}: schema_change={DISCARD!r} does not go with a pattern over columns: each table would "
            "leave out other ones, and nobody would count them. Select the columns, or use 'freeze' or 'evolve'"
        )
    return KeepingFan(sink) if hasattr(sink, "revise_state") else Fan(sink)


class Fan(FanTasks):
    """One sink for each name that the rows give."""

    #: its state and committables are by name
    has_targets = True

    def __init__(self, template: TwoPhaseCommitSink) -> None:
        super().__init__(template)
        #: target -> the state of a sink that could not be opened
        self._closed: dict[str, Any] = {}
        #: target -> its newest checkpoints with rows
        self._seen: dict[str, tuple[CheckpointId, ...]] = {}
        self._next: dict[str, tuple[CheckpointId, ...]] = {}
        self._run: Run | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need the sinks, not what the driver remembers."""
        return {**self.__dict__, "_seen": {}, "_next": {}, "_closed": {}, "_run": None}

    # -- on the driver: names ---------------------------------------------------------------------------------------

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink; which names there are is in the state, which comes next."""
        if run.schema is not None:
            self._pattern.check(run.schema)
        self._run, self._sinks, self._refused, self._closed, self._seen, self._next = run, {}, {}, {}, {}, {}

    def close(self) -> None:
        """See TwoPhaseCommitSink."""
        for sink in self._sinks.values():
            sink.close()

    def initialize_state(self, state: Any) -> None:
        """Open the sink of every name that is known."""
        targets = {} if state is None else state["targets"]
        self._seen, self._next = {target: tuple(body["seen"]) for target, body in targets.items()}, {}
        for target, body in targets.items():
            try:
                sink = self._sink(target)
            except ConfigError as error:
                # A table that somebody dropped: a problem of rows that come for it, or are owed to it, and of no other.
                self._refused[target], self._closed[target] = (
                    f"cannot be written to: {first_line(error)}",
                    body["state"],
                )
                continue
            sink.initialize_state(body["state"])

    def snapshot_state(self, checkpoint_id: CheckpointId) -> Any:
        """The names, and what the sink of each wants to have saved."""
        seen = self._decided
        return self._json({t: self._state_of(t, checkpoint_id) for t in seen}, seen)

    def _state_of(self, target: str, checkpoint_id: CheckpointId) -> Any:
        if target in self._closed:
            return self._closed[target]
        return self._sinks[target].snapshot_state(checkpoint_id)

    def _json(self, states: Mapping[str, Any], seen: Mapping[str, Sequence[CheckpointId]]) -> dict[str, Any]:
        targets = {t: {"seen": list(seen[t]), "state": states[t]} for t in sorted(states)}
        return {"version": 1, "pattern": self._pattern.text, "targets": targets}

    def _sink(self, target: str) -> TwoPhaseCommitSink:
        """The sink of a name, opened."""
        found = self._sinks.get(target)
        if found is None:
            found = self.template.for_target(target)
            found.name = target_name(self.name, target)
            found.open(self._run_of(target, found.name))
            # A new dict: another thread may be going through this one.
            self._sinks = {**self._sinks, target: found}
        return found

    def _run_of(self, target: str, name: str) -> Run:
        """The run as the sink of one name sees it: what is committed there is what its ledger must know (rule 15)."""
        run = self.run
        of_fan = run.committed.get(self.name)
        known = {}
        if of_fan is not None:
            last = max((n for n in self._seen.get(target, ()) if n <= of_fan.checkpoint_id), default=None)
            if last is not None:
                known = {name: Committed(last, of_fan.at)}
        return replace(run, committed=known)

    @property
    def _decided(self) -> dict[str, tuple[CheckpointId, ...]]:
        """With the checkpoint that is being decided, or was the last to be."""
        return {**self._seen, **self._next}

    @property
    def run(self) -> Run:
        """The query run this sink is part of."""
        if self._run is None:
            raise ConfigError(f"sink {self.name!r} is not part of a running query")
        return self._run

    def _learn(self, target: str) -> None:
        """Open the sink of a name that a task met; one that cannot be had makes its rows bad ones."""
        run = self.run
        try:
            sink = self._sink(target)
        except LineageError:
            if not run.may_take_over:
                raise
            self._run = replace(run, take_over=True)
            try:
                sink = self._sink(target)
            finally:
                self._run = run
        except ConfigError as error:
            self._refused[target] = f"cannot be written to: {first_line(error)}"
            return
        sink.initialize_state(None)
        # What a driver that died before its decision has left of this name.
        sink.recover(run.pipeline, run.generation, {})
        self._seen[target] = ()

    # -- on the driver: a checkpoint --------------------------------------------------------------------------------

    def validate(self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks) -> None:
        """Open what is new, then let the tasks run again; else let each name's sink look at its own."""
        new = sorted({target for c in committables for target in c.get("new", ())})
        if new:
            free = max(0, self.max_targets - len(self._sinks))
            for target in new[:free]:
                self._learn(target)
            for target in new[free:]:
                self._refused[target] = self._too_many
            raise NotPreparedError(
                f"sink {self.name!r}: rows of checkpoint {checkpoint_id} go to {len(new)} new names ({new[0]!r}"
                f"{' and others' if len(new) > 1 else ''}), which are ready now: the tasks run once more"
            )
        apart = by_target(committables)
        for target, mine in apart.items():
            self._sinks[target].validate(checkpoint_id, mine, tasks)
        self._seen = self._decided  # no abort was told of the checkpoint before, so it is
        self._next = {t: (*self._seen.get(t, ()), checkpoint_id)[-_REMEMBERED:] for t in apart}

    def still_prepared(self, committables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Those of which every name's sink still has its part."""
        gone: list[Mapping[str, Any]] = []
        for target, mine in by_target(committables).items():
            held = list(self._sink(target).still_prepared(mine))
            gone += [data for data in mine if data not in held]
        return [c for c in committables if not any(one["data"] in gone for one in c["targets"])]

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Let each name's sink commit; one that has committed before says so, so that it can be repeated."""
        answers = []
        for target, mine in by_target(committables).items():
            try:
                with faults.point("commit.subtask"):
                    answer = self._sink(target).commit(checkpoint_id, mine, tasks)
            except LostError as error:
                lost = [c for c in committables if any(one["data"] in error.lost for one in c["targets"])]
                raise LostError(str(error), lost, certain=error.certain) from error
            if answer is not None and not answer.done:
                return answer
            answers.append(answer)
        return Outcome.ALREADY_COMMITTED if set(answers) == {Outcome.ALREADY_COMMITTED} else Outcome.COMMITTED

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """Each name's sink undoes what no record names."""
        apart = {n: by_target(committables) for n, committables in decided.items()}
        for target in {*self._sinks, *(t for of in apart.values() for t in of)}:
            mine = {n: of[target] for n, of in apart.items() if target in of}
            self._sink(target).recover(pipeline, generation, mine)

    def rows_of(self, committables: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch] | None:
        """See TwoPhaseCommitSink."""
        found = [self._sink(target).rows_of(mine) for target, mine in by_target(committables).items()]
        if any(rows is None for rows in found):
            return None
        return (batch for rows in found if rows is not None for batch in rows)

    def give_up(self, committables: Sequence[Mapping[str, Any]]) -> Any:
        """See TwoPhaseCommitSink; the state has a part for each name."""
        revised = {t: self._sink(t).give_up(mine) for t, mine in by_target(committables).items()}
        return self._revised(revised)

    def _revised(self, revised: Mapping[str, Any]) -> Any:
        """The state with these parts changed, None when none is."""
        changed = {target: state for target, state in revised.items() if state is not None}
        if not changed:
            return None
        seen = self._decided
        last = max((n for of in seen.values() for n in of), default=0)
        states = {t: changed[t] if t in changed else self._state_of(t, last) for t in seen}
        return self._json(states, seen)

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """See TwoPhaseCommitSink."""
        for sink in self._sinks.values():
            sink.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """See TwoPhaseCommitSink."""
        self._next = {}
        for sink in self._sinks.values():
            sink.notify_checkpoint_aborted(checkpoint_id)


class KeepingFan(Fan):
    """Of sinks that keep rows of complete checkpoints, as files do (see holdfast.checkpoint.maintenance)."""

    def revise_state(self, now: float, *, last: bool) -> Any:
        """See holdfast.checkpoint.maintenance."""
        revised = {t: sink.revise_state(now, last=last) for t, sink in self._sinks.items()}  # type: ignore[attr-defined]
        return self._revised(revised)

    def act_on_state(self, tasks: Tasks) -> None:
        """See holdfast.checkpoint.maintenance."""
        for sink in self._sinks.values():
            sink.act_on_state(tasks)  # type: ignore[attr-defined]
