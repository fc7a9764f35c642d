"""A store that is only looked at, by somebody who must not be stopped by a file of any size."""

from __future__ import annotations

from typing import Any, cast

from holdfast.checkpoint.storage import Storage, open_storage
from holdfast.errors import RecordError


class LimitedStorage:
    """Reads files up to a size; a larger one is a damaged record to whoever reads it."""

    def __init__(self, inner: Storage, largest: int) -> None:
        self._inner, self._largest = inner, largest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, name: str) -> bytes:
        """See Storage."""
        with self._inner.reader(name) as stream:
            data = stream.read(self._largest + 1)
        if len(data) > self._largest:
            raise RecordError(
                f"{self._inner.url}/{name} is larger than {self._largest:,} bytes, which no record should be: it is "
                "not read here. The query itself has no such limit"
            )
        return data


def open_limited(location: str, largest: int | None) -> Storage:
    """The store for a location; with `largest`, one that refuses to read larger files."""
    storage = open_storage(location)
    return storage if largest is None else cast(Storage, LimitedStorage(storage, largest))
