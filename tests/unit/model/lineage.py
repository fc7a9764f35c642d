"""A location that is deleted, or put back from an old copy, under an endpoint that remembers (rule 10).

One driver at a time, apart from one whose location was deleted: it may still hold a commit and wake up late. Batch
numbers begin again and hold other rows then, so a ledger that is believed by number alone skips them. Bounds: one
deletion, one old copy, put back when no driver of it lives, three checkpoints, any number of crashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.core.recovery import LedgerVerdict

from .kernel import KERNEL, Kernel
from .world import SKIPPED, TWICE


class Log(NamedTuple):
    """A checkpoint location."""

    lineage: str
    #: checkpoint -> the era its rows are of, by position
    decided: tuple[int, ...] = ()
    committed: int = -1


class Run(NamedTuple):
    """A live driver, or one that was forgotten."""

    lineage: str
    #: the commit it is about to make: (checkpoint, era)
    owes: tuple[int, int] | None = None


class Place(NamedTuple):
    """A state."""

    log: Log | None = None
    copy: Log | None = None
    run: Run | None = None
    zombie: Run | None = None
    refused: bool = False
    ledger: tuple[tuple[str, int], ...] = ()
    delivered: tuple[tuple[int, int], ...] = ()
    era: int = 0
    deletes: int = 1
    restores: int = 1
    broken: str = ""


class Lineages:
    """The transitions."""

    def __init__(self, kernel: Kernel = KERNEL, *, checkpoints: int = 3) -> None:
        self.kernel = kernel
        self.checkpoints = checkpoints

    def first(self) -> Place:
        """Nothing is there."""
        return Place()

    def broken(self, place: Place) -> tuple[bool, str]:
        """An end is where the driver was refused, or is done."""
        done = place.log is not None and place.log.committed == self.checkpoints - 1
        return place.refused or done, place.broken

    def successors(self, place: Place) -> Iterator[tuple[str, Place]]:
        """Every step."""
        yield from self.accidents(place)
        if place.zombie is not None:
            after, _ = self.commit(place, place.zombie)
            yield f"the forgotten driver commits {place.zombie.owes}", after._replace(zombie=None)
        if place.run is None:
            if not place.refused:
                yield self.start(place)
        elif place.log is not None:
            yield "the driver dies", place._replace(run=None)
            yield from self.work(place, place.log, place.run)

    def start(self, place: Place) -> tuple[str, Place]:
        log = place.log or Log(f"lineage {place.era}")
        last = len(log.decided) - 1 if log.decided else None
        verdict = self.kernel.judge_ledger(dict(place.ledger), log.lineage, last)
        if verdict is not LedgerVerdict.OURS:
            return f"a driver of {log.lineage} is refused: {verdict.name}", place._replace(log=log, refused=True)
        owed = log.committed + 1
        owes = (owed, log.decided[owed]) if owed < len(log.decided) else None
        return f"a driver of {log.lineage} starts", place._replace(log=log, run=Run(log.lineage, owes))

    def work(self, place: Place, log: Log, run: Run) -> Iterator[tuple[str, Place]]:
        n = len(log.decided)
        if run.owes is None and n < self.checkpoints:
            decided = log._replace(decided=(*log.decided, place.era))
            yield f"decides {n}", place._replace(log=decided, run=run._replace(owes=(n, place.era)))
        elif run.owes is not None:
            after, taken = self.commit(place, run)
            if not taken:
                yield "is refused at the commit", after._replace(run=None, refused=True)
                return
            # The answer may be lost, so committed and recorded are two states.
            yield f"commits {run.owes}, its record is not written", after._replace(run=None)
            recorded = log._replace(committed=run.owes[0])
            yield f"commits {run.owes}", after._replace(log=recorded, run=run._replace(owes=None))

    def commit(self, place: Place, run: Run) -> tuple[Place, bool]:
        """One transaction: look at the ledger, insert the rows and the mark."""
        assert run.owes is not None
        n, era = run.owes
        ledger = dict(place.ledger)
        foreign = {lineage: mark for lineage, mark in ledger.items() if lineage != run.lineage}
        if foreign and self.kernel.judge_ledger(foreign, run.lineage, n) is LedgerVerdict.FOREIGN:
            return place, False
        if self.kernel.own_mark(ledger, run.lineage) >= n:
            skipped = (era, n) not in place.delivered
            return place._replace(broken=SKIPPED if skipped else place.broken), True
        twice = (era, n) in place.delivered
        return place._replace(
            ledger=tuple(sorted((ledger | {run.lineage: n}).items())),
            delivered=tuple(sorted((*place.delivered, (era, n)))),
            broken=TWICE if twice else place.broken,
        ), True

    def accidents(self, place: Place) -> Iterator[tuple[str, Place]]:
        """What operators do. A driver whose location is deleted may hold one commit back and make it later."""
        if place.log is None:
            return
        if place.deletes:
            zombie = place.run if place.run is not None and place.run.owes is not None else place.zombie
            gone = place._replace(log=None, run=None, zombie=zombie, refused=False)
            yield "the location is deleted", gone._replace(era=place.era + 1, deletes=place.deletes - 1)
        if place.restores and place.copy is None and place.run is None:
            yield "the location is copied", place._replace(copy=place.log)
        # Nobody but the operator can know that no driver of the copy lives any more: restoring under one is refused
        # in the documentation, not by the protocol.
        if place.restores and place.copy is not None and place.run is None and place.zombie is None:
            back = place._replace(log=place.copy, copy=None, refused=False)
            yield "the old copy is put back", back._replace(era=place.era + 1, restores=place.restores - 1)
