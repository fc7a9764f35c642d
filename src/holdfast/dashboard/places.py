"""The pipelines that are shown: each checkpoint location gets a name of its own, and is reached by nothing else."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoint import journal
from holdfast.checkpoint.history import engine_position, log_location, segments
from holdfast.checkpoint.history_pages import HistoryPages
from holdfast.checkpoint.limited import open_limited
from holdfast.checkpoint.reader import LogReader
from holdfast.checkpoint.savepoint import list_savepoints
from holdfast.checkpoint.status import Status, read_status, require_used
from holdfast.errors import ConfigError, HoldfastError

#: bytes of a record above which it is not read but called damaged
LARGEST = 32 << 20
#: seconds for which a status that was just read is good enough for the next one who asks
FRESH = 0.5
#: ... and the list of savepoints, whose folder may be large and far away
SHELF_FRESH = 15.0


class Shelf:
    """A folder of savepoints; it is not read again for each page."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._read: tuple[float, dict[str, Any]] | None = None

    def of(self, pipeline: str | None) -> dict[str, Any]:
        """The folder, the savepoints of a pipeline in it, and what is wrong with it."""
        with self._lock:
            if self._read is None or time.monotonic() - self._read[0] > SHELF_FRESH:
                self._read = time.monotonic(), self._look()
            told = self._read[1]
        return {**told, "savepoints": [s for s in told["savepoints"] if s["pipeline"] == pipeline]}

    def _look(self) -> dict[str, Any]:
        told: dict[str, Any] = {"folder": self._folder, "error": None, "savepoints": []}
        try:
            found = list_savepoints(self._folder)
        except (HoldfastError, OSError) as error:
            return {**told, "error": str(error)}
        names = ("path", "pipeline", "location", "created", "checkpoint_id")
        whole = [{**{n: getattr(s, n) for n in names}, "bytes": s.bytes, "files": len(s.files)} for s in found]
        return {**told, "savepoints": whole[::-1]}

    def forget(self) -> None:
        """The next one who asks gets what is there then."""
        with self._lock:
            self._read = None


class Place:
    """One checkpoint location."""

    def __init__(self, slug: str, location: str, shelf: Shelf | None = None) -> None:
        self.slug, self.location, self._shelf = slug, location, shelf
        self.history = HistoryPages(location, largest=LARGEST)
        self._lock = threading.Lock()
        self._read: tuple[float, Status] | None = None

    def status(self) -> Status:
        """Where it stands; HoldfastError when its files cannot be read."""
        with self._lock:
            if self._read is None or time.monotonic() - self._read[0] > FRESH:
                self._read = time.monotonic(), read_status(self.location, largest=LARGEST)
            return self._read[1]

    def forget(self) -> None:
        """The next one who asks gets what is there then."""
        with self._lock:
            self._read = None

    def log(self) -> LogReader:
        """Its log, to be loaded."""
        return LogReader(self.location, largest=LARGEST)

    def savepoints(self) -> dict[str, Any]:
        """Those of this pipeline in the folder of savepoints, the newest first, or what is wrong with the folder."""
        nothing: dict[str, Any] = {"folder": None, "error": None, "savepoints": []}
        return nothing if self._shelf is None else self._shelf.of(self.status().pipeline)

    def forget_savepoints(self) -> None:
        """There is a new one."""
        if self._shelf is not None:
            self._shelf.forget()

    def fingerprint(self) -> str:
        """Changes whenever something changed that a page shows; cheaper than reading it all."""
        log = self.log()
        storage, owner = log.storage, log.owner()
        told = [repr(engine_position(self.location)), "none" if owner is None else f"{owner.generation} {owner.state}"]
        folders = ["", "commits", "lost", "reports", "runs", journal.FOLDER]
        if owner is not None:
            folders += sorted({"decisions", log.slots_folder(owner.generation)})
        told += [",".join(storage.names(folder)) for folder in folders]
        newest = segments(storage)[-1:]
        for name in [*(f"history/{n}" for n in newest), *([] if owner is None else [f"runs/{owner.generation}.json"])]:
            try:
                told.append(hashlib.sha256(storage.read(name)).hexdigest())
            except FileNotFoundError:
                told.append("")
        return hashlib.sha256("\n".join(told).encode("utf-8", "surrogateescape")).hexdigest()


class Places:
    """All of them, in the order of the command line."""

    def __init__(self, paths: Sequence[str], *, yet_unused: bool = False, savepoints: str | None = None) -> None:
        """`yet_unused`: a location may be one that no query has used yet; `savepoints` is the folder of savepoints."""
        self._places: dict[str, Place] = {}
        self.savepoints = savepoints
        shelf = None if savepoints is None else Shelf(savepoints)
        for path in paths:
            for location in [path] if yet_unused else _locations(path):
                if location not in [place.location for place in self]:
                    slug = self._slug(location)
                    self._places[slug] = Place(slug, location, shelf)
        if not self._places:
            raise ConfigError("name at least one checkpoint location, or a folder that has some")

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places.values())

    def __len__(self) -> int:
        return len(self._places)

    def get(self, slug: str) -> Place | None:
        """The one of this name."""
        return self._places.get(slug)

    def _slug(self, location: str) -> str:
        base = re.sub(r"[^a-z0-9]+", "-", location.rstrip("/").rpartition("/")[2].lower()).strip("-")[:40] or "pipeline"
        slug, number = base, 2
        while slug in self._places:
            slug, number = f"{base}-{number}", number + 1
        return slug


def _locations(path: str) -> list[str]:
    """The location itself or, if it is a local folder without a log, those directly in it."""
    if open_limited(log_location(path), None).names("generations"):
        return [path]
    folder = Path(path)
    inside = sorted(folder.iterdir()) if "://" not in path and folder.is_dir() else []
    found = [str(child) for child in inside if (child / "holdfast" / "generations").is_dir()]
    if not found:
        require_used(path)
    return found or [path]
