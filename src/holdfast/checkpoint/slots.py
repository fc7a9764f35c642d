"""Which generations there are, and which of their slots a start has to look at (rules 1 and 5; design: "Scale").

The abort slot of each earlier start stays for ever: a forgotten driver's create must fail. But nobody looks at it
again. A floor record says up to which generation all are closed, and which of those still have decisions that were not
pruned. That stays true for ever, since a closed generation gets no more records: an old floor costs time and nothing
else, and one that is missing or damaged is made anew from the slots themselves.

`floors/<g>.json` is written once, by generation g, after it has closed every older one. The newest counts, so a paused
driver that writes its own late moves nothing back. Generations are claimed one by one, so the newest is found by
looking for the next name. From the hundredth on, the slots of each hundred generations have a folder of their own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.checkpoint import records
from holdfast.checkpoint.storage import Storage
from holdfast.core.model import Slot
from holdfast.errors import RecordError

logger = logging.getLogger("holdfast")
FLAT = "decisions"
#: how many generations share a folder
SHARD = 100
_SLOT = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.json")
_GENERATION = re.compile(r"0|[1-9]\d*")
_FLOOR = re.compile(r"(0|[1-9]\d*)\.json")


@dataclass(frozen=True)
class Floor:
    """All generations below this one are closed; `live` are those of them that may have decisions, with folders."""

    generation: int
    live: Mapping[int, str]


def folder_for(generation: int) -> str:
    """Where a generation that is claimed now keeps its slots; its claim says so, too."""
    return FLAT if generation < SHARD else f"{FLAT}/{generation // SHARD * SHARD}"


def claim_name(generation: int) -> str:
    """Where a generation is claimed."""
    return f"generations/{generation}"


class Slots:
    """The generations and slots of one location, as one reader knows them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._floor: Floor | None = None
        self._newest: int | None = None
        self._folders: dict[int, str] = {}
        #: as they were found, since the newest are asked for their folders soon after
        self._claims: dict[int, bytes] = {}
        self._old_floors: list[int] = []

    # -- generations ------------------------------------------------------------------------------------------------

    def newest(self) -> int:
        """The newest generation that is claimed by now, -1 when there is none."""
        number = self._begin() if self._newest is None else self._newest
        while self._claimed(number + 1):
            number += 1
        self._newest = number
        return number

    def open(self) -> range:
        """The generations that are not known to be closed, oldest first."""
        newest = self.newest()
        return range(0 if self._floor is None else self._floor.generation, newest + 1)

    def _begin(self) -> int:
        self._floor = self._read_floor()
        if self._floor is None:
            names = self._storage.names("generations")
            return max((int(name) for name in names if _GENERATION.fullmatch(name)), default=-1)
        self._folders.update(self._floor.live)
        if not self._claimed(self._floor.generation):
            path = f"{self._storage.url}/{claim_name(self._floor.generation)}"
            raise records.damaged(path, f"it is missing, although it wrote {_floor_name(self._floor.generation)}")
        return self._floor.generation

    def _claimed(self, generation: int) -> bool:
        try:
            self._claims[generation] = self._storage.read(claim_name(generation))
        except FileNotFoundError:
            return False
        return True

    # -- slots ------------------------------------------------------------------------------------------------------

    def list(self) -> list[Slot]:
        """The slots that are filled, in order, but for those of closed generations without decisions."""
        wanted = self.open()
        if self._floor is None:
            folders = {FLAT, *(folder_for(number) for number in range(0, wanted.stop, SHARD))}
        else:
            folders = {self.folder(number) for number in (*self._floor.live, *wanted)}
        found = []
        for folder in sorted(folders):
            for name in self._storage.names(folder):
                match = _SLOT.fullmatch(name)
                if match is None:
                    path = f"{self._storage.url}/{folder}/{name}"
                    raise records.damaged(path, "its name is not that of a decision slot")
                slot = Slot(int(match[1]), int(match[2]))
                if self._floor is None or slot.generation in wanted or slot.generation in self._floor.live:
                    self._folders[slot.generation] = folder
                    found.append(slot)
        return sorted(found)

    def name(self, slot: Slot) -> str:
        """Where a slot's record is."""
        return f"{self.folder(slot.generation)}/{slot.generation}.{slot.index}.json"

    def folder(self, generation: int) -> str:
        """Where a generation has its slots: an earlier holdfast had all of them in one folder."""
        if generation < SHARD:
            return FLAT
        if generation not in self._folders:
            name = claim_name(generation)
            data = self._claims.get(generation) or self._storage.read(name)
            claim = records.decode(data, f"{self._storage.url}/{name}", "generation")
            self._folders[generation] = str(claim.get("slots", FLAT))
        return self._folders[generation]

    # -- the floor --------------------------------------------------------------------------------------------------

    def raise_floor(self, generation: int, live: Iterable[int]) -> None:
        """Every generation below this one is closed, and no others of them than `live` have decisions."""
        body = {"generation": generation, "live": {str(number): self.folder(number) for number in live}}
        self._storage.create(_floor_name(generation), records.encode("floor", records.new_nonce(), body))
        for number in self._old_floors:
            self._storage.delete(_floor_name(number))

    def _read_floor(self) -> Floor | None:
        for _ in range(10):  # a start that writes its own removes the older ones
            names = self._storage.names("floors")
            self._old_floors = sorted(int(match[1]) for match in map(_FLOOR.fullmatch, names) if match)
            if not self._old_floors:
                return None
            name = _floor_name(self._old_floors[-1])
            try:
                return _parse(self._storage.read(name), f"{self._storage.url}/{name}", self._old_floors[-1])
            except FileNotFoundError:
                continue
            except RecordError as error:
                logger.warning(
                    "%s Slower, but as safe: all slots are read, and the next floor is made from them", error
                )
                return None
        return None


def _floor_name(generation: int) -> str:
    return f"floors/{generation}.json"


def _parse(data: bytes, path: str, number: int) -> Floor:
    body = records.decode_with(("generation", "live"), data, path, "floor")
    try:
        floor = Floor(int(body["generation"]), {int(g): str(folder) for g, folder in body["live"].items()})
    except (AttributeError, TypeError, ValueError) as error:
        raise records.damaged(path, f"a field is wrong ({error})") from error
    if floor.generation != number:
        raise records.damaged(path, "its name does not fit its content")
    return floor
