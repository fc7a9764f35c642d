"""Doing what is planned: parts are merged, files finished, announced and shown, by executors; repeatable by anybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.connectors.files.complete import Complete, Done, Show
from holdfast.connectors.files.marks import Mark, read_marks
from holdfast.connectors.files.parts import Folder
from holdfast.connectors.files.publish import Finished, announce, announcements, forget
from holdfast.connectors.files.rolling import Roll

#: what one task does: many small files, or one large one
_FILES, _BYTES = 100, 16 * 2**20
Item = TypeVar("Item")


@dataclass(frozen=True)
class Performer:
    """For one sink of one query run."""

    path: str
    sink: str
    run: Run

    def perform(self, tasks: Tasks, rolls: Sequence[Roll]) -> dict[int, Done]:
        """Do these; when it returns, all of them are done, and files among them have been visible."""
        folder, lineage = Folder(self.path, self.run.pipeline, self.sink), self.run.lineage
        said = announcements(folder, lineage)
        known = {file.number for files in said.values() for file in files}
        done = {roll.number: Done(roll.number) for roll in rolls if roll.number in known}
        complete = Complete(self.path, self.run.pipeline, self.sink, lineage, self.run.generation)
        while left := [roll for roll in rolls if roll.number not in done]:
            # A part that is still to be merged can be one of those that make a file.
            unmade = {roll.target for roll in left if roll.hidden}
            ready = [roll for roll in left if unmade.isdisjoint(part.file for part in roll.parts)]
            for made in tasks.map(complete, list(_shares(ready, lambda roll: roll.bytes))):
                done.update((one.number, one) for one in made)
        for group in sorted({roll.group for roll in rolls if not roll.hidden}):
            mine = [done[roll.number].finished for roll in rolls if roll.group == group]
            said[group] = _announced(folder, lineage, group, said.get(group, []), [f for f in mine if f is not None])
        self._show(tasks, folder, [file for group in {r.group for r in rolls} for file in said.get(group, ())])
        return done

    def _show(self, tasks: Tasks, folder: Folder, files: Sequence[Finished]) -> None:
        # Read after the announcements: one that comes after another driver's mark is about files seen long ago.
        mark = read_marks(folder).get(self.run.lineage, Mark()).roll
        forget(folder, (file for file in files if file.number <= mark))
        hidden = [file for file in files if file.number > mark]
        tasks.map(Show(self.path, self.run.pipeline, self.sink), list(_shares(hidden, lambda _: 0)))


def _announced(
    folder: Folder, lineage: str, group: int, known: Sequence[Finished], mine: Sequence[Finished]
) -> list[Finished]:
    """What is announced of a group, with what I have to add; what another has announced differently is forgotten."""
    found = list(known)
    if mine and not known:
        found = announce(folder, lineage, group, mine)
    numbers = {file.number for file in found}
    for file in mine:
        # Left out by a driver that did not have its parts: announced by itself.
        if file.number not in numbers:
            found += announce(folder, lineage, file.number, [file])
    return found


def _shares(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    share: list[Item] = []
    total = 0
    for item in items:
        if share and (len(share) >= _FILES or total + size(item) > _BYTES):
            yield share
            share, total = [], 0
        share.append(item)
        total += size(item)
    if share:
        yield share
