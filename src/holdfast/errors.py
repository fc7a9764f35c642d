"""Every error holdfast raises on purpose.

```
HoldfastError
├── ConfigError (also ValueError)   an option is wrong; raised when the object is made
│   └── MissingExtraError           a connector's packages are not installed
├── StorageError                    the checkpoint location cannot be used
│   ├── RecordError                 a record or log file is damaged or missing; names the path
│   └── UnsafeStorageError          the store does not honour "create only if absent"
├── FencedError                     another driver took over this checkpoint location
├── CheckpointInUseError            a live query of this process already uses this location, name or sink
├── LineageError                    an endpoint knows this pipeline name, but not from this checkpoint
│   ├── ForeignLineageError         ... from another checkpoint location
│   └── StaleCheckpointError        ... from a later state of this checkpoint location
├── CommitError                     a decided checkpoint could not be committed; the restart retries it
│   └── LostError                   the endpoint dropped a decided transaction
├── SourceError                     the source cannot start or go on where it should
├── BacklogFullError                a write-ahead sink has more pending than allowed
├── RowError                        the rows themselves cannot be delivered
└── InjectedFault                   a fault point armed by a test fired
```

Each message says what is wrong, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class HoldfastError(Exception):
    """Root of all errors holdfast raises on purpose."""


class ConfigError(HoldfastError, ValueError):
    """An option is wrong; the message names the option and what is allowed."""


class MissingExtraError(ConfigError):
    """A connector needs packages that are not installed; the message names the extra."""


class StorageError(HoldfastError):
    """The checkpoint location cannot be used."""


class RecordError(StorageError):
    """A record or log file is damaged or missing; it is never skipped."""


class UnsafeStorageError(StorageError):
    """The store does not honour exclusive creation, so no decision made in it is safe."""


class FencedError(HoldfastError):
    """Another driver took over this checkpoint location; this one may decide nothing any more."""


class CheckpointInUseError(HoldfastError):
    """A live query of this process already uses this checkpoint location or sink."""


class LineageError(HoldfastError):
    """An endpoint knows this pipeline name, but not from this checkpoint; rows would be skipped or doubled."""


class ForeignLineageError(LineageError):
    """The endpoint's ledger belongs to another checkpoint location with the same pipeline name."""


class StaleCheckpointError(LineageError):
    """The endpoint or the log is ahead of the checkpoint: an old or partly deleted checkpoint was started."""


class CommitError(HoldfastError):
    """A decided checkpoint could not be committed; it stays decided and the restart retries it."""


class LostError(CommitError):
    """The endpoint dropped a decided transaction; committing again cannot bring its rows back.

    `lost` holds the committables it dropped, empty when the sink cannot tell which. `certain` is False when they may
    have been committed after all, and nobody can find out but by looking for the rows.
    """

    def __init__(self, message: str, lost: Iterable[Mapping[str, Any]] = (), *, certain: bool = True) -> None:
        super().__init__(message)
        self.lost = tuple(lost)
        self.certain = certain


class SourceError(HoldfastError):
    """A source cannot start or go on where it should; the message says which topic or group and what to do."""


class BacklogFullError(HoldfastError):
    """A write-ahead sink has more undelivered checkpoints or bytes than `max_pending` or `max_pending_bytes` allow."""


class RowError(HoldfastError):
    """The rows themselves cannot be delivered: two rows of one key, a column the table lacks."""


class InjectedFault(HoldfastError):
    """A fault point armed by a test fired (see holdfast.testing.faults)."""


#: Trying again cannot help: the coordinator raises these at once instead of retrying or lagging.
PERMANENT = (ConfigError, RecordError, UnsafeStorageError, FencedError, LineageError, LostError, RowError)
