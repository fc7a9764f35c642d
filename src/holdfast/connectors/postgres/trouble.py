"""What the server's errors mean, and which error holdfast raises for each: rows, set-up, or worth another try."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.errors import ConfigError, HoldfastError, RowError, SinkError

#: Classes of SQLSTATE that blame the rows: cardinality, data, integrity, WITH CHECK OPTION, a limit of the server such
#: as the size of a row, and what a trigger or function raises on its own account.
_ROWS = ("21", "22", "23", "44", "54", "P0")
#: ... that blame the table, the role's rights or the settings: undefined, denied, not supported, no such database.
_SET_UP = ("0A", "28", "2B", "2F", "3D", "3F", "42")
#: A server that refuses us says so in words only, and in English unless it was told otherwise.
_REFUSED = ("password authentication failed", "no pg_hba.conf entry", "does not exist", "no password supplied")
RAISE_PREPARED = (
    "mode='two-phase' needs one prepared transaction for each partition of a batch and some to spare: ALTER SYSTEM SET "
    "max_prepared_transactions = 64, then restart the server. mode='ledger' needs no server setting"
)
_LOCKED = (
    "waited for longer than lock_timeout for a lock on table {table} or on one of its rows. In two-phase mode two rows "
    "of one checkpoint with the same unique key, or a prepared transaction that nobody ends, do that: see "
    "pg_stat_activity and pg_prepared_xacts, and docs/postgres.md"
)
#: of a staging table, whose name helps nobody
_STAGING = re.compile(r'( (?:of|for)) (?:relation "(?:stage|raw)_[0-9a-f_]+"|index "long_[0-9a-f_]+_index")')
_COLUMN = re.compile(r"^COPY .*, line \d+, column (.+)$", re.MULTILINE)
#: a text too long for a column of type `name`, among the errors about tables
_NAME_TOO_LONG = "42622"


@dataclass(frozen=True)
class Trouble:
    """An error of psycopg or ADBC, read."""

    #: the five characters of the SQL standard, or none: then the connection broke
    state: str
    said: str
    column: str | None = None
    constraint: str | None = None

    @property
    def is_about_rows(self) -> bool:
        """Whether the rows are to blame, so that trying again cannot help."""
        return self.state[:2] in _ROWS or self.state == _NAME_TOO_LONG

    @property
    def is_about_set_up(self) -> bool:
        """Whether the table, a right or a setting is to blame."""
        return self.state[:2] in _SET_UP


def read(error: Exception) -> Trouble:
    """What an error says, without the drivers' wrapping and without the names of staging tables."""
    parts = _parts(error)
    found = _COLUMN.search(parts.get("context", ""))
    column = parts.get("column_name") or (found[1] if found else None)
    text = parts.get("message_primary")
    if text is None:
        text = str(error).partition("ERROR:")[2] or str(error)
        text = re.sub(r"\s*SQLSTATE: \w{5}\s*$", "", text)
    text = _STAGING.sub("", text)
    for key in ("message_detail", "message_hint"):
        if key in parts:
            text = f"{text.rstrip('.')}; {parts[key]}"
    said = re.sub(r"\s*\n\s*", "; ", text.strip().rstrip("."))
    return Trouble(getattr(error, "sqlstate", None) or "", said[:1000], column, parts.get("constraint_name"))


def _parts(error: Exception) -> dict[str, str]:
    """The fields of the server's message; psycopg has them as `diag`, ADBC as `details`."""
    diag = getattr(error, "diag", None)
    names = ("message_primary", "message_detail", "message_hint", "context", "column_name", "constraint_name")
    if diag is not None:
        return {name: value for name in names if (value := getattr(diag, name))}
    found = {}
    for key, value in getattr(error, "details", None) or ():
        name = key.decode("ascii", "replace").removeprefix("PG_DIAG_").lower()
        if name in names:
            found[name] = value.decode("utf-8", "replace")
    return found


def said(error: Exception) -> str:
    """What the server said."""
    return read(error).said


def refuses_us(error: Exception) -> bool:
    """Whether a server answered, and will not let us in whenever we come."""
    return "FATAL" in str(error) and any(words in str(error) for words in _REFUSED)


def blame(sink: str, address: str, table: object, error: Exception, about: str = "") -> HoldfastError:
    """The error for one of the server's, outside of a commit; `about`: what it is about, if the server does not say."""
    trouble = read(error)
    if trouble.is_about_rows:
        column = f"column {trouble.column!r}" if trouble.column is not None else about
        column = f"{column}: " if column else ""
        return RowError(
            f"sink {sink!r}: {column}a row does not go into table {table}: {trouble.said}. Change the query or the "
            "table, or filter such rows out"
        )
    if trouble.state == "55P03":
        return SinkError(f"sink {sink!r} ({address}): {_LOCKED.format(table=table)}")
    if trouble.state == "53200" and "prepared transactions" in str(error):
        return ConfigError(f"sink {sink!r}: {trouble.said}. {RAISE_PREPARED}")
    if trouble.is_about_set_up:
        return ConfigError(
            f"sink {sink!r} ({address}), table {table}: {trouble.said}. The table, its schema or a right is not what "
            "it was when the query started: put it right, then start the query again"
        )
    return unreachable(sink, address, trouble.said)


def after_decision(where: str, table: str, checkpoint_id: int, trouble: Trouble, kept: str) -> HoldfastError | None:
    """The error for one of the server's in a commit, if its rows or its table are to blame; `kept`: where rows are."""
    if trouble.is_about_rows:
        by = "" if trouble.constraint is None else f" (constraint {trouble.constraint!r})"
        return RowError(
            f"{where}: a row of checkpoint {checkpoint_id} does not go into table {table}: {trouble.said}{by}. Nothing "
            f"is lost, its rows are in {kept}: change the table so that it takes them, or remove what they collide "
            "with, then start the query again; or end it with `holdfast resolve`"
        )
    if trouble.is_about_set_up:
        return ConfigError(
            f"{where}: table {table} is not what it was when the query started: {trouble.said}. Nothing is lost, the "
            f"rows are in {kept}: put it right, then start the query again"
        )
    return None


def unreachable(sink: str, address: str, why: str) -> SinkError:
    """Worth another try."""
    return SinkError(
        f"sink {sink!r} ({address}): {why}. Check that the server is up, reachable and has room; nothing is lost, and "
        "the query goes on when it answers again"
    )
