"""What a driver does, step by step, as `Coordinator` and `CheckpointLog` do it.

A driver's future is an agenda of operations. One step performs the operation at its head: one access to the log or to
the endpoint, which is what can interleave. What is local to a driver is done along with the step before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.model import RecordKind, Slot
from holdfast.core.recovery import Leftover, Moment, Step
from holdfast.core.repair import Replayed
from holdfast.core.states import Event, State, advance

from . import kernel as k
from .world import AHEAD, DEAD, TWO_DECISIONS, Bounds, Driver, Op, World, digest

DECISION, REPAIR, ABORT = RecordKind.DECISION.value, RecordKind.REPAIR.value, RecordKind.ABORT.value


class Drivers:
    """The steps of drivers; a subclass adds those of its kind of sink."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.kernel = bounds.kernel

    # -- what a kind of sink provides ---------------------------------------------------------------------------------

    def leftovers(self, world: World) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
        """Prepared work that can be found now, as data of committables."""
        raise NotImplementedError

    def undo(self, world: World, driver: Driver, data: tuple) -> World:
        """Abort or delete this piece of work, if it is still there."""
        raise NotImplementedError

    def commit_ops(self, checkpoint_id: int, work: tuple) -> tuple[Op, ...]:
        """How this checkpoint is committed."""
        raise NotImplementedError

    # -- steps ----------------------------------------------------------------------------------------------------

    def start(self, world: World) -> Iterator[tuple[str, World]]:
        """A new driver claims a generation; the claim is retried until it succeeds, so it is one step."""
        if len(world.drivers) == self.bounds.generations:
            return
        own = self.kernel.next_generation(world.generations)
        agenda: tuple[Op, ...] = ()
        for step in self.kernel.steps_at(Moment.START):
            if step is not Step.FENCE and ("load",) not in agenda:
                agenda = (*agenda, ("load",))
            agenda = (*agenda, (step.name.lower(),))
        driver = Driver(own, (*agenda, ("next",)))
        if self.bounds.one_after_another and len(world.drivers) > 1:
            oldest = len(world.drivers) - 2
            world = self.put(world, oldest, world.drivers[oldest]._replace(agenda=DEAD))
        claimed = world._replace(generations=(*world.generations, own), drivers=(*world.drivers, driver))
        yield f"g{own + 1} claims", self.settle(claimed, len(world.drivers))

    def step(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        """Perform the head of the agenda; nothing when the driver waits or is done."""
        driver = world.drivers[i]
        if not driver.agenda:
            return
        op, *rest = driver.agenda
        action = getattr(self, f"do_{op[0]}", None)
        if action is None:
            return
        after = driver._replace(agenda=tuple(rest))
        for label, changed, mine in action(world, after, *op[1:]):
            yield f"g{driver.generation + 1} {label}", self.put(changed, i, mine)

    def put(self, world: World, i: int, driver: Driver) -> World:
        """The world with this driver in it, its local operations done."""
        drivers = (*world.drivers[:i], driver, *world.drivers[i + 1 :])
        world = self.settle(world._replace(drivers=drivers), i)
        if world.drivers[i].dead:
            # What a dead driver remembered makes no difference, and would only tell equal states apart.
            drivers = (*drivers[:i], Driver(driver.generation, DEAD), *drivers[i + 1 :])
            world = world._replace(drivers=drivers)
        return world

    def do_fence(self, world: World, driver: Driver):
        """List generations and slots; each fence is then a step of its own, so the list may be old by then."""
        slots = [Slot(e[0], e[1]) for e in world.entries]
        last = {e[0]: e[2] for e in sorted(world.entries)}
        aborted = [g for g, kind in last.items() if kind == ABORT]
        open_slots = self.kernel.slots_to_fence(driver.generation, world.generations, slots, aborted)
        fills = tuple(("fill", s.generation, s.index) for s in open_slots)
        yield "lists slots", world, driver._replace(agenda=fills + driver.agenda)

    def do_fill(self, world: World, driver: Driver, generation: int, index: int):
        """Fill the first open slot with an abort; where one is just decided, go one further."""
        there = {(e[0], e[1]): e[2] for e in world.entries}
        while (generation, index) in there:
            if there[generation, index] == ABORT:
                yield f"finds g{generation + 1} fenced", world, driver
                return
            index += 1
        entry = (generation, index, ABORT, -1, ())
        yield (
            f"fences slot {generation}.{index}",
            world._replace(entries=tuple(sorted((*world.entries, entry)))),
            driver,
        )

    def do_load(self, world: World, driver: Driver):
        follow = [("batch", world.spark + 1)] if world.spark + 1 < self.bounds.checkpoints else []
        agenda = tuple(op for old in driver.agenda for op in (follow if old == ("next",) else [old]))
        yield "reads the log", world, driver._replace(entries=world.entries, commits=world.commits, agenda=agenda)

    def do_sweep(self, world: World, driver: Driver):
        """List what is left over; each is then undone in a step of its own, so the list may be old by then."""
        decided = k.kept(self.kernel, driver.entries, driver.commits)
        undo = tuple(
            ("undo", data)
            for data in sorted(self.leftovers(world))
            if self.kernel.may_undo(Leftover(data[1][0], data), driver.generation, decided)
        )
        yield f"lists leftovers: {len(undo)}", world, driver._replace(agenda=undo + driver.agenda)

    def do_undo(self, world: World, driver: Driver, data: tuple):
        yield f"undoes {data[1]}", self.undo(world, driver, data), driver

    def do_record(self, world: World, driver: Driver, checkpoint_id: int):
        commits = {(checkpoint_id, k.SINK)}
        mine = driver._replace(commits=driver.commits | commits)
        yield f"records commit {checkpoint_id}", world._replace(commits=world.commits | commits), mine

    def do_batch(self, world: World, driver: Driver, n: int):
        if not self.kernel.may_decide(driver.generation, world.generations):
            yield f"begins batch {n} and finds itself fenced", world, driver._replace(agenda=DEAD)
            return
        known = n in k.facts(self.kernel, driver.entries, driver.commits).decided
        then: tuple[Op, ...] = (("replay", n),) if known else (("launch", n),)
        agenda = (("moment", Moment.BATCH), *then, *driver.agenda)
        state = State.DECIDED if known else State.RUNNING
        yield f"begins batch {n}", world, driver._replace(agenda=agenda, state=state)

    def do_check(self, world: World, driver: Driver, n: int, kind: str):
        """List generations: a newer one means stop."""
        if self.kernel.may_decide(driver.generation, world.generations):
            yield "sees no newer generation", world, driver._replace(agenda=(("decide", n, kind), *driver.agenda))
        else:
            yield "sees a newer generation", world, self.failed(driver, Event.FENCE)

    def do_decide(self, world: World, driver: Driver, n: int, kind: str):
        """Fill the next slot of the own generation: the point of no return."""
        slots = [Slot(e[0], e[1]) for e in world.entries]
        slot = self.kernel.own_slot(Slot(driver.generation, driver.slot), slots)
        if slot in slots:
            yield f"finds its slot {slot.generation}.{slot.index} filled", world, self.failed(driver, Event.FENCE)
            return
        entry = (slot.generation, slot.index, kind, n, driver.reports)
        work = tuple(data for _, data, _ in driver.reports)
        twice = kind == DECISION and any(c == n and old == DECISION for c, old, _ in world.promised)
        if self.kernel.is_written(kind):
            world = world._replace(
                entries=tuple(sorted((*world.entries, entry))),
                promised=world.promised | {(n, kind, work)},
                broken=TWO_DECISIONS if twice else world.broken,
            )
        mine = driver._replace(
            agenda=(("moment", Moment.DECIDED), ("finish", n), *driver.agenda),
            entries=tuple(sorted((*driver.entries, entry))),
            slot=driver.slot + 1,
            reports=(),
            state=advance(driver.state, Event.DECIDE if kind == DECISION else Event.REPAIR),
        )
        yield f"writes {kind} of {n} to slot {slot.generation}.{slot.index}", world, mine

    def do_prune(self, world: World, driver: Driver):
        gone, slots = k.pruned(self.kernel, driver.entries, driver.commits, self.bounds.retain)

        def left(entries):
            return tuple(e for e in entries if Slot(e[0], e[1]) not in slots)

        def owed(commits):
            return frozenset(c for c in commits if c[0] not in gone)

        mine = driver._replace(entries=left(driver.entries), commits=owed(driver.commits))
        yield "prunes", world._replace(entries=left(world.entries), commits=owed(world.commits)), mine

    def do_return(self, world: World, driver: Driver, n: int):
        """Spark commits the batch, and calls with the next."""
        more = (("batch", n + 1),) if n + 1 < self.bounds.checkpoints else ()
        offsets = (("offsets",),) if self.bounds.write_ahead else ()
        mine = driver._replace(agenda=(*offsets, *more, *driver.agenda), state=State.RUNNING)
        yield f"returns: Spark commits {n}", world._replace(spark=max(world.spark, n)), mine

    def do_offsets(self, world: World, driver: Driver):
        through = self.kernel.complete_through(k.facts(self.kernel, driver.entries, driver.commits))
        through = -1 if through is None else through
        wanted = {(c, s) for c in range(through + 1) for s in range(self.bounds.subtasks)}
        broken = world.broken if wanted <= set(world.delivered) else AHEAD
        yield f"commits group offsets up to {through}", world._replace(group_offsets=through, broken=broken), driver

    # -- what is local to a driver --------------------------------------------------------------------------------

    def failed(self, driver: Driver, event: Event) -> Driver:
        """Undo what the tasks prepared, and stop; a decided checkpoint that could not be repaired stays decided."""
        state = driver.state if driver.state is State.DECIDED else advance(driver.state, event)
        return driver._replace(agenda=(("moment", Moment.FAILED), ("die",)), reports=(), state=state)

    def settle(self, world: World, i: int) -> World:
        """Do the local operations at the head of an agenda."""
        while world.drivers[i].agenda:
            driver = world.drivers[i]
            op, *rest = driver.agenda
            local = getattr(self, f"local_{op[0]}", None)
            if local is None:
                break
            changed, mine = local(world, driver._replace(agenda=tuple(rest)), *op[1:])
            if mine is None:
                break
            world = changed._replace(drivers=(*world.drivers[:i], mine, *world.drivers[i + 1 :]))
        return world

    def local_moment(self, world: World, driver: Driver, moment: Moment):
        ops = tuple((step.name.lower(),) for step in self.kernel.steps_at(moment))
        return world, driver._replace(agenda=ops + driver.agenda)

    def local_deliver(self, world: World, driver: Driver):
        known = k.facts(self.kernel, driver.entries, driver.commits)
        ops: tuple[Op, ...] = ()
        for action in k.plan(self.kernel, driver.entries, driver.commits):
            ops += self.commit_ops(action.checkpoint_id, known.decided[action.checkpoint_id].of(action.sink))
        return world, driver._replace(agenda=ops + driver.agenda, lost=())

    def local_launch(self, world: World, driver: Driver, n: int):
        g, split = driver.generation, self.bounds.split
        tasks = [((g, n, s, 0), split(g, n, s)) for s in range(self.bounds.subtasks)]
        await_ = ("await", n, DECISION, tuple((s, writer) for s, (writer, _) in enumerate(tasks)))
        mine = driver._replace(agenda=(await_, *driver.agenda), reports=())
        return world._replace(tasks=world.tasks | set(tasks)), mine

    def local_await(self, world: World, driver: Driver, n: int, kind: str, waiting: tuple):
        if len(driver.reports) < len(waiting):
            return world, None
        state = advance(driver.state, Event.PREPARE) if kind == DECISION else driver.state
        return world, driver._replace(agenda=(("check", n, kind), *driver.agenda), state=state)

    def local_replay(self, world: World, driver: Driver, n: int):
        """Spark runs a decided batch again: write nothing, unless the endpoint lost some of it (rule 4)."""
        if not driver.lost:
            return world, driver._replace(agenda=(("finish", n), *driver.agenda))
        g, split = driver.generation, self.bounds.split
        known = k.facts(self.kernel, driver.entries, driver.commits).decided[n]
        lost = [c for c in known.of(k.SINK) if (n, c.subtask) in driver.lost]
        replay = [Replayed(s, 1, digest(split(g, n, s))) for s in range(self.bounds.subtasks)]
        kept = [c for c in known.of(k.SINK) if c not in lost]
        found = self.kernel.plan_repair(lost, replay, kept)
        if not found.possible:
            return world, driver._replace(agenda=DEAD)
        attempt = 10 + driver.slot  # unlike any other attempt of this generation
        tasks = {((g, n, s, attempt), split(g, n, s)) for _, s in found.matches}
        await_ = ("await", n, REPAIR, tuple((c.subtask, (g, n, s, attempt)) for c, s in found.matches))
        return world._replace(tasks=world.tasks | tasks), driver._replace(agenda=(await_, *driver.agenda), reports=())

    def local_finish(self, world: World, driver: Driver, n: int):
        """The batch is delivered, lags, or was lost: then the query stops and Spark replays it."""
        if driver.lost:
            return world, driver._replace(agenda=(("batch", n), *driver.agenda), state=State.DECIDED)
        owed = any(a.checkpoint_id == n for a in k.plan(self.kernel, driver.entries, driver.commits))
        state = advance(driver.state, Event.LAG if owed else Event.COMMIT)
        prune = (("prune",),) if k.pruned(self.kernel, driver.entries, driver.commits, self.bounds.retain)[1] else ()
        return world, driver._replace(agenda=(*prune, ("return", n), *driver.agenda), state=state)

    def local_die(self, world: World, driver: Driver):
        return world, driver._replace(agenda=DEAD)
