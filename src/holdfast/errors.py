"""Every error holdfast raises on purpose, and what to do about each.

```
HoldfastError                                 .action
├── ConfigError (also ValueError)   fix       an option is wrong; raised when the object is made
│   └── MissingExtraError           fix       a connector's packages are not installed
├── StorageError                    restart   the checkpoint location cannot be read or written; names the path
│   ├── RecordError                 operator  a record or log file is damaged or missing; names the path
│   └── UnsafeStorageError          fix       the store does not honour "create only if absent"
├── FencedError                     operator  another driver took over this checkpoint location
├── CheckpointInUseError            fix       a live query of this process already uses this location, name or sink
├── LineageError                    operator  an endpoint knows this pipeline name, but not from this checkpoint
│   ├── ForeignLineageError         operator  ... from another checkpoint location
│   ├── StaleCheckpointError        operator  ... from a later state of this checkpoint location
│   └── RestoredEndpointError       operator  ... from an earlier state: it lacks checkpoints that were committed
├── SavepointError                  operator  a savepoint could not be taken or started from, or a rewind not be done
├── SinkError                       restart   an endpoint failed or did not answer; names sink and address
├── NotPreparedError                restart   the endpoint dropped prepared work before the decision
├── CommitError                     restart   a decided checkpoint could not be committed; the restart retries it
│   ├── LostError                   operator  the endpoint dropped a decided transaction
│   └── MarkError                   operator  rows were sent, but the committer could not write its mark
├── UndeliveredError                restart   a run ended before its sinks had caught up; names sink, checkpoints, rows
├── SourceError                     operator  the source cannot start or go on where it should
├── BacklogFullError                operator  a write-ahead sink has more pending than allowed
├── RowError                        fix       the rows themselves cannot be delivered
├── EngineError                     restart   Spark itself, or code of the query that runs in Spark, failed
├── RefusedError                    fix       `holdfast run` found something fatal before the start; names each finding
└── InjectedFault                   restart   a fault point armed by a test fired
```

Each message says what is wrong, where, and what to do; `action` says it to programs. `restart`: start the query again,
it may well work. `operator`: a person has to look and decide. `fix`: the configuration or the query has to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

RESTART, OPERATOR, FIX = "restart", "operator", "fix"
ACTIONS = (RESTART, OPERATOR, FIX)


class HoldfastError(Exception):
    """Root of all errors holdfast raises on purpose."""

    #: what to do about it: `restart`, `operator` or `fix`
    action: str = RESTART


class ConfigError(HoldfastError, ValueError):
    """An option is wrong; the message names the option and what is allowed."""

    action = FIX


class MissingExtraError(ConfigError):
    """A connector needs packages that are not installed; the message names the extra."""


class StorageError(HoldfastError):
    """The checkpoint location cannot be used."""

    #: False: the store did not answer at all; the checkpoint location may be as it should be
    reached: bool = True


class RecordError(StorageError):
    """A record or log file is damaged or missing; it is never skipped."""

    action = OPERATOR


class UnsafeStorageError(StorageError):
    """The store does not honour exclusive creation, so no decision made in it is safe."""

    action = FIX


class FencedError(HoldfastError):
    """Another driver took over this checkpoint location; this one may decide nothing any more."""

    action = OPERATOR


class CheckpointInUseError(HoldfastError):
    """A live query of this process already uses this checkpoint location or sink."""

    action = FIX


class LineageError(HoldfastError):
    """An endpoint knows this pipeline name, but not from this checkpoint; rows would be skipped or doubled."""

    action = OPERATOR


class ForeignLineageError(LineageError):
    """The endpoint's ledger belongs to another checkpoint location with the same pipeline name.

    `ledger` is what it says: lineage -> last committed checkpoint.
    """

    def __init__(self, message: str, ledger: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.ledger = dict(ledger or {})


class StaleCheckpointError(LineageError):
    """The endpoint or the log is ahead of the checkpoint: an old or partly deleted checkpoint was started."""


class RestoredEndpointError(LineageError):
    """The endpoint lacks checkpoints that it has committed: it was restored from a backup, emptied or made anew.

    `behind` is the first and the last checkpoint that it may lack.
    """

    def __init__(self, message: str, behind: tuple[int, int] = (0, 0)) -> None:
        super().__init__(message)
        self.behind = behind


class SavepointError(HoldfastError):
    """A savepoint could not be taken or started from, or a rewind not be done; the pipeline is as it was."""

    action = OPERATOR


class SinkError(HoldfastError):
    """An endpoint failed or did not answer; trying again may help. The message names the sink and the address.

    `again` says whether it is worth trying at once, in the same run: not so for what looks like a bug of a sink.
    """

    def __init__(self, message: str, *, again: bool = True) -> None:
        super().__init__(message)
        self.again = again


class NotPreparedError(HoldfastError):
    """The endpoint dropped what tasks had prepared before it was decided: nothing is lost, the batch runs again."""


class CommitError(HoldfastError):
    """A decided checkpoint could not be committed; it stays decided and the restart retries it."""


class LostError(CommitError):
    """The endpoint dropped a decided transaction; committing again cannot bring its rows back.

    `lost` holds the committables it dropped, empty when the sink cannot tell which. `certain` is False when they may
    have been committed after all, and nobody can find out but by looking for the rows.
    """

    action = OPERATOR

    def __init__(self, message: str, lost: Iterable[Mapping[str, Any]] = (), *, certain: bool = True) -> None:
        super().__init__(message)
        self.lost = tuple(lost)
        self.certain = certain


class MarkError(CommitError):
    """Rows were sent, but the committer could not write its mark: sending them again and again would not help (D10)."""

    action = OPERATOR


class UndeliveredError(HoldfastError):
    """A bounded run or a stop ended before every sink had caught up; the next start delivers the rest first."""


class SourceError(HoldfastError):
    """A source cannot start or go on where it should; the message says which topic or group and what to do."""

    action = OPERATOR


class BacklogFullError(HoldfastError):
    """A write-ahead sink has more undelivered checkpoints or bytes than `max_pending` or `max_pending_bytes` allow."""

    action = OPERATOR


class RowError(HoldfastError):
    """The rows themselves cannot be delivered: two rows of one key, a value that the endpoint cannot take.

    `rows` are the numbers, within the batch that `write` was given, of rows that are known to be bad; empty when the
    sink cannot tell. `column` and `reason` say what is wrong with them.
    """

    action = FIX

    def __init__(
        self, message: str, *, rows: Iterable[int] = (), column: str | None = None, reason: str | None = None
    ) -> None:
        super().__init__(message)
        self.rows, self.column = tuple(rows), column
        self.reason = message if reason is None else reason


class EngineError(HoldfastError):
    """Spark, or code of the query that runs in Spark, failed; its own error is the cause."""

    def __init__(self, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


class RefusedError(HoldfastError):
    """A check before the start found something fatal; the message names each with its remedy."""

    def __init__(self, message: str, action: str = FIX) -> None:
        super().__init__(message)
        #: `operator` when a person has to decide and nothing has to be mended
        self.action = action


class InjectedFault(HoldfastError):
    """A fault point armed by a test fired (see holdfast.core.faults)."""


def permanent(error: BaseException) -> bool:
    """Whether trying the same again cannot help: the query stops at once instead of retrying or lagging."""
    return isinstance(error, HoldfastError) and error.action != RESTART


def first_line(error: BaseException) -> str:
    """Enough of an error for a table; Spark's hold whole stack traces."""
    return str(error).strip().partition("\n")[0][:500]
