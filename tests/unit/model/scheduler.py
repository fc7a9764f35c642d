"""Threads, processes and time, made deterministic: one actor runs at a time, and changes happen at points only.

An actor is a greenlet: a driver's batch thread, one of its delivery loops, a task on an executor. Every access to the
store or to an endpoint is a point. There the schedule may say that something else happens than the default, which is
that the actor goes on: another actor goes first, the driver dies, an answer is lost, a call fails, time passes. Each of
these is a deviation, and an execution is given by its deviations: {number of the point: what happens there}.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

#: A point: how often the state was seen there is told by its key; the alternatives are what may happen instead.
Alternative = tuple[str, ...]
#: Executions that take longer, in points or in seconds of the virtual clock, make no progress.
LONGEST, HORIZON = 6_000, 1_500.0
#: How far the clock goes when the schedule says that time passes: past every timeout of the model.
A_WHILE = 100.0


class Vanished(BaseException):
    """The process of this actor is dead: nothing it calls has any effect."""


class Stuck(Exception):
    """Nobody can go on, or nobody gets anywhere."""


class Pruned(Exception):
    """From here on everything is as in an execution that was explored already."""


@dataclass
class Process:
    """A driver, a task, an operator's command: what dies at once when it is killed."""

    name: str
    parent: Process | None = None
    dead: bool = False
    stamp: int = 0
    #: how many unique ids it has made
    ids: int = 0

    @property
    def family(self) -> Process:
        """Its driver, or itself."""
        return self.parent or self


@dataclass
class Actor:
    """A thread of control."""

    name: str
    process: Process
    #: whose turn it is: the lower the earlier
    rank: int
    body: greenlet = field(repr=False)
    #: not before everybody else is done, unless the schedule says so
    late: bool = False
    waiting: Callable[[], bool] | None = None
    due: float | None = None
    over: bool = False


@dataclass(frozen=True)
class Point:
    """One point that was passed: what was about to happen, and what else could have."""

    number: int
    actor: str
    what: str
    alternatives: tuple[Alternative, ...]


class Scheduler:
    """Runs actors to their ends, as the schedule says."""

    def __init__(
        self,
        schedule: dict[int, Alternative],
        *,
        choose: Callable[[str, list[Alternative]], Alternative | None] | None = None,
        seen: Callable[[int, Hashable], bool] | None = None,
    ) -> None:
        self.schedule, self._choose, self._seen = schedule, choose, seen
        self._last = max(schedule, default=-1)
        self.now = 1_000_000.0
        self._began = self.now
        self.actors: list[Actor] = []
        self._by_body: dict[greenlet, Actor] = {}
        self.points: list[Point] = []
        self._count = 0
        #: the deviations that happened, in words
        self.told: list[str] = []
        #: no faults and no changes any more: what comes now is the clean end
        self.calm = False
        self._hub = getcurrent()
        self._stamps: dict[str, int] = {}
        #: all stamps together, so that equal states have equal keys
        self._sum = 0
        #: called when time passes
        self.on_time: list[Callable[[], None]] = []

    # -- actors -----------------------------------------------------------------------------------------------------

    def spawn(self, name: str, process: Process, rank: int, run: Callable[[], None], *, late: bool = False) -> Actor:
        """A new actor; it runs when its turn comes."""

        def body() -> None:
            try:
                run()
            except (Vanished, GreenletExit):
                pass
            finally:
                actor.over = True

        actor = Actor(name, process, rank, greenlet(body, self._hub), late)
        self.actors.append(actor)
        self._by_body[actor.body] = actor
        return actor

    @property
    def current(self) -> Actor:
        """The actor that runs."""
        return self._by_body[getcurrent()]

    def _ready(self, actor: Actor) -> bool:
        if actor.over or actor.process.dead:
            return False
        if actor.waiting is None:
            return True
        return actor.waiting() or (actor.due is not None and actor.due <= self.now)

    def run(self) -> None:
        """Until every actor is over; Stuck when none can go on."""
        previous: Actor | None = None
        while True:
            actor = self._next(previous)
            if actor is None:
                return
            actor.waiting = actor.due = None
            actor.late, self._switch_to = False, None
            actor.body.switch()
            if self._ended is not None:
                raise self._ended
            previous = actor

    _switch_to: Actor | None = None
    #: why the execution is not run to its end
    _ended: Exception | None = None

    def _give_up(self, reason: Exception) -> None:
        """End the execution: from here on no actor has any effect."""
        self._ended = reason
        for actor in self.actors:
            actor.process.dead = True
        raise Vanished

    def _next(self, previous: Actor | None) -> Actor | None:
        if self._switch_to is not None and self._ready(self._switch_to):
            return self._switch_to
        while True:
            left = [a for a in self.actors if not a.over and not a.process.dead]
            ready = [a for a in left if self._ready(a)]
            prompt = [a for a in ready if not self._is_late(a)]
            if prompt:
                same = [a for a in prompt if previous is not None and a.process.family is previous.process.family]
                return min(same or prompt, key=lambda a: a.rank)
            dues = [a.due for a in left if a.due is not None and not (ready and self._is_late(a))]
            if dues and not (ready and all(self._is_late(a) for a in left)):
                if min(dues) > self._began + HORIZON:
                    raise Stuck(", ".join(a.name for a in left))
                self.pass_time(max(0.0, min(dues) - self.now))
            elif ready:
                return min(ready, key=lambda a: (a.process.family.dead, a.rank))
            elif left:
                raise Stuck(", ".join(a.name for a in left))
            else:
                return None

    def _is_late(self, actor: Actor) -> bool:
        return actor.late or actor.process.family.dead

    def pass_time(self, seconds: float) -> None:
        """The clock goes on, for everybody."""
        self.now += seconds
        for call in self.on_time:
            call()

    def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """The current actor rests until the condition holds, or for so many seconds."""
        actor = self.current
        if condition():
            return True
        actor.waiting, actor.due = condition, None if seconds is None else self.now + seconds
        self._hub.switch()
        self._check(actor)
        return condition()

    def sleep(self, seconds: float) -> None:
        """Rest without a condition."""
        self.wait(lambda: False, seconds)

    def kill(self, process: Process) -> None:
        """The process is gone, with all its actors; nothing of it runs again."""
        process.dead = True
        self._restamp(process, hash(("dead", process.stamp)))
        me = getcurrent()
        for actor in self.actors:
            if actor.process is process and not actor.over and actor.body is not me:
                actor.body.throw(GreenletExit) if actor.body else setattr(actor, "over", True)

    def close(self) -> None:
        """The execution is over: let go of everything."""
        for actor in self.actors:
            actor.process.dead = True
        for actor in self.actors:
            if actor.body:
                actor.body.throw(GreenletExit)

    def _check(self, actor: Actor) -> None:
        if actor.process.dead:
            raise Vanished

    # -- points -----------------------------------------------------------------------------------------------------

    def point(
        self,
        what: str,
        effect: Callable[[], Any],
        touched: tuple[str, ...],
        *,
        write: bool,
        faults: tuple[str, ...],
        failure: Callable[[str], Exception] = OSError,
    ) -> Any:
        """An access to something shared, which may go otherwise than by default."""
        actor = self.current
        self._check(actor)
        happens = None if self.calm else self._decide(actor, what, faults)
        while happens is not None and happens[0] in ("switch", "time", "orphan"):
            self.told.append(f"{self._count - 1}: before {actor.name} {what}: {' '.join(happens)}")
            if happens[0] == "time":
                self.pass_time(A_WHILE)
            elif happens[0] == "orphan":
                self.kill(actor.process.family)
                self._yield_to(None)
            else:
                self._yield_to(next(a for a in self.actors if a.name == happens[1]))
                self._check(actor)
            happens = self._decide(actor, what, faults)
        self._stamp(actor, (actor.name, what, happens), touched, write and happens not in (("crash",), ("fail",)))
        if happens is None:
            return effect()
        self.told.append(f"{self._count - 1}: {actor.name} {what}: {happens[0]}")
        if happens[0] == "crash":
            self.kill(actor.process)
            raise Vanished
        if happens[0] == "lose":
            effect()
        raise failure(f"{what}: {'no answer' if happens[0] == 'lose' else 'no connection'}")

    def _yield_to(self, other: Actor | None) -> None:
        actor = self.current
        actor.waiting, self._switch_to = None, other
        self._hub.switch()

    def _decide(self, actor: Actor, what: str, faults: tuple[str, ...]) -> Alternative | None:
        number, self._count = self._count, self._count + 1
        if number > LONGEST:
            self._give_up(Stuck(f"{actor.name} and others are still busy after {number} points"))
        planned = self.schedule.get(number)
        if planned is not None:
            return planned
        if number <= self._last:
            return None
        if self._seen is not None and self._seen(number, (self._sum, self.now, actor.name, what)):
            self._give_up(Pruned())
        possible: list[Alternative] = [("switch", a.name) for a in self.actors if a is not actor and self._ready(a)] + [
            (fault,) for fault in faults
        ]
        if actor.process.parent is not None and not actor.process.parent.dead:
            possible.append(("orphan",))
        if self._choose is not None:
            chosen = self._choose(what, possible)
            if chosen is not None:
                self.schedule[number] = chosen
            return chosen
        self.points.append(Point(number, actor.name, what, tuple(possible)))
        return None

    def _stamp(self, actor: Actor, what: Hashable, touched: tuple[str, ...], write: bool) -> None:
        """Equal keys for executions that differ only in the order of what is independent of each other.

        A process' stamp stands for all it has seen, that of an object for how it came to be as it is.
        """
        process = actor.process
        seen = tuple(self._stamps.get(name, 0) for name in touched)
        new = hash((process.stamp, what, seen, write, self.now))
        self._restamp(process, new)
        if write:
            for name in touched:
                self._sum ^= hash((name, self._stamps.get(name, 0))) ^ hash((name, new))
                self._stamps[name] = new

    def join(self, process: Process, others: Iterable[Process]) -> None:
        """A process has learnt what others did."""
        self._restamp(process, hash((process.stamp, *(other.stamp for other in others))))

    def _restamp(self, process: Process, new: int) -> None:
        self._sum ^= hash((process.name, process.stamp)) ^ hash((process.name, new))
        process.stamp = new
