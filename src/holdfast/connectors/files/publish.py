"""How a finished file becomes visible: known to be finished first, seen after, and once only (F4).

A file is written whole under a hidden name that nobody uses twice. Then an announcement, created exclusively, says
which hidden file is to become which committed one. Only then is it shown, by a step that consumes what it shows: a
rename on a disk, the completion of a multipart upload on S3. So whoever comes later, after any crash, knows by the
announcement and the hidden file being gone that it was shown, also when a reader has taken it away since, and never
shows it again. Announcements are for all files that one record planned: drivers cannot differ in what they are for.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from holdfast.checkpoint.object_store import ObjectStorage
from holdfast.checkpoint.records import decode_with, encode, new_nonce
from holdfast.checkpoint.storage import LocalStorage, fsync_folder
from holdfast.checkpoint.trouble import told
from holdfast.connectors.files.parts import Folder
from holdfast.errors import StorageError

logger = logging.getLogger("holdfast")
_KIND = "files"
_NAME = re.compile(r"(0|[1-9]\d*)\.json")
_FINISHED = re.compile(r"(0|[1-9]\d*)-(0|[1-9]\d*)-[0-9a-f]{32}")


@dataclass(frozen=True)
class Finished:
    """A file that is whole and hidden: what showing it takes."""

    number: int
    target: str
    #: below the sink's own folder; empty when an upload of the store holds it
    hidden: str = ""
    #: of a store that keeps unfinished uploads: its id and its pieces
    upload: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finished:
        """Read back."""
        return cls(**data)


class Writing:
    """Where the bytes of a file go while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        #: what came of it, when the block has ended
        self.finished: Finished | None = None


@contextmanager
def writing(folder: Folder, number: int, target: str, lineage: str, generation: int) -> Iterator[Writing]:
    """Write a file that stays hidden; it is durable when the block ends, its name after `sync_hidden`."""
    storage = folder.storage
    if isinstance(storage, ObjectStorage) and storage.has_uploads:
        with storage.upload(target) as (file, pieces):
            out = Writing(file)
            yield out
        out.finished = Finished(number, target, upload=pieces)
        return
    hidden = f"pending/{lineage}/{generation}-{number}-{uuid.uuid4().hex}"
    write = storage.content_writer if isinstance(storage, LocalStorage) else storage.writer
    with write(folder.hidden(hidden)) as file:
        out = Writing(file)
        yield out
    out.finished = Finished(number, target, hidden)


def sync_hidden(folder: Folder, files: Iterable[Finished]) -> None:
    """Make the names of hidden files durable, their folder once for all of them."""
    if isinstance(folder.storage, LocalStorage):
        root = folder.storage.root
        for place in {(root / folder.hidden(file.hidden)).parent for file in files}:
            with told(place, "synced"):
                fsync_folder(place)
                # It may be another's, who was killed before its name was durable.
                fsync_folder(place.parent)


def announce(folder: Folder, lineage: str, group: int, files: Iterable[Finished]) -> list[Finished]:
    """Say durably what becomes visible of the files that one record planned; whoever came first has said it."""
    mine = list(files)
    name = folder.hidden(f"publish/{lineage}/{group}.json")
    if folder.storage.create(name, encode(_KIND, new_nonce(), {"files": [asdict(file) for file in mine]})):
        return mine
    announced = _read(folder, name)
    numbers = {file.number for file in announced}
    forget(folder, (file for file in mine if file.number in numbers and file not in announced))
    return announced


def announcements(folder: Folder, lineage: str) -> dict[int, list[Finished]]:
    """What has been announced and not been forgotten. Read the mark after this, not before."""
    found = {}
    for file in folder.storage.names(folder.hidden(f"publish/{lineage}")):
        match = _NAME.fullmatch(file)
        if match is not None:
            try:
                found[int(match[1])] = _read(folder, folder.hidden(f"publish/{lineage}/{file}"))
            except FileNotFoundError:  # another driver has just forgotten it: its mark says so
                continue
    return found


def _read(folder: Folder, name: str) -> list[Finished]:
    document = decode_with(("files",), folder.storage.read(name), folder.url(name), _KIND)
    return [Finished.from_json(file) for file in document["files"]]


def show(folder: Folder, file: Finished) -> bool:
    """Make it visible; False: it was before, and is not hidden any more."""
    storage = folder.storage
    if file.upload is not None:
        assert isinstance(storage, ObjectStorage)
        shown = storage.finish_upload(file.target, file.upload)
    elif isinstance(storage, LocalStorage):
        shown = _rename(storage, folder.hidden(file.hidden), file.target)
    else:
        assert isinstance(storage, ObjectStorage)
        shown = storage.move(folder.hidden(file.hidden), file.target)
    if not shown and not folder.exists(file.target):
        logger.warning(
            "%s was completed before this start and is not there any more: somebody has moved or removed it, and it is "
            "not written again",
            folder.url(file.target),
        )
    return shown


def _rename(storage: LocalStorage, hidden: str, target: str) -> bool:
    source, path = storage.root / hidden, storage.root / target
    for _ in range(10):
        with told(path, "written"):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)  # `sync_shown` makes them durable, all at once
                source.replace(path)
            except FileNotFoundError:
                if source.exists():  # somebody removed the empty folder that it goes to
                    continue
                return False
            return True
    raise StorageError(f"{path.parent} is removed again and again while {path.name} is put there")


def sync_shown(folder: Folder, files: Iterable[Finished]) -> None:
    """Make it durable that files are shown, each folder once."""
    storage = folder.storage
    if not isinstance(storage, LocalStorage):
        return
    folders = set()
    for file in files:
        folders.add((storage.root / folder.hidden(file.hidden)).parent)
        # Also the folders above it: another may have made them and been killed before their names were durable.
        above = (storage.root / file.target).parents
        folders.update(parent for parent in above if parent == storage.root or storage.root in parent.parents)
    for place in sorted(folders, reverse=True):
        # A reader who took the last file may have removed the folder, too.
        with told(place, "synced"), suppress(FileNotFoundError):
            fsync_folder(place)


def forget(folder: Folder, files: Iterable[Finished]) -> None:
    """Remove finished files that are not wanted: another driver has announced its own."""
    for file in files:
        if file.upload is not None:
            assert isinstance(folder.storage, ObjectStorage)
            folder.storage.abort_upload(file.target, file.upload)
        else:
            folder.storage.delete(folder.hidden(file.hidden))


def tidy(folder: Folder, lineage: str, generation: int, done: int) -> None:
    """Remove announcements whose files are all shown, and hidden files that were never announced.

    Only up to the mark: of a later one nobody knows whether a paused driver is about to announce it.
    """
    for group, files in announcements(folder, lineage).items():
        if all(file.number <= done for file in files):
            folder.storage.delete(folder.hidden(f"publish/{lineage}/{group}.json"))
    for name in folder.storage.names(folder.hidden(f"pending/{lineage}")):
        match = _FINISHED.fullmatch(name)
        if match is not None and int(match[1]) <= generation and int(match[2]) <= done:
            folder.storage.delete(folder.hidden(f"pending/{lineage}/{name}"))
