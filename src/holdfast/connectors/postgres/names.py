"""Names at the server: quoting, tables as users write them, staging and the gids of prepared transactions."""

from __future__ import annotations

import hashlib
import re
import secrets
import uuid
from dataclasses import dataclass

from holdfast.core.naming import Task, escape
from holdfast.errors import ConfigError

#: What PostgreSQL keeps of an identifier; it cuts the rest off with no more than a notice.
MAX_IDENTIFIER = 63
_PART = r'(?:[^\s".]+|"(?:[^"]|"")+")'
_TABLE = re.compile(rf"(?:({_PART})\.)?({_PART})")
_GID = re.compile(r"hfp1-([^-]*)-([^-]*)-([0-9a-f]{16})-([0-9a-f]{32})-(\d+)-(\d+)-(\d+)-(\d+)-([0-9a-f]{8})")
#: Of each name, for whoever reads pg_prepared_xacts; with it the longest gid has 191 of the 200 bytes allowed.
_SHOWN = 32


def quote(identifier: str) -> str:
    """An identifier for use in SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text for use in SQL, whatever the server thinks of backslashes."""
    quoted = "'" + text.replace("'", "''") + "'"
    return " E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted


@dataclass(frozen=True)
class TableName:
    """A table, with its schema or without."""

    schema: str | None
    table: str

    def __str__(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"

    @property
    def sql(self) -> str:
        """Quoted, for use in SQL."""
        return quote(self.table) if self.schema is None else f"{quote(self.schema)}.{quote(self.table)}"


def check_identifier(option: str, name: object) -> str:
    """One identifier, as PostgreSQL will keep it."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConfigError(f"{option} must be a name, not {name!r}")
    if len(name.encode()) > MAX_IDENTIFIER:
        raise ConfigError(f"{option}: {name!r} has more than the {MAX_IDENTIFIER} bytes PostgreSQL keeps of a name")
    return name


def parse_table(text: object) -> TableName:
    """`table` or `schema.table`, spelled as the catalog spells it; a part with a dot or blank in double quotes."""
    match = _TABLE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(f'table must be "table" or "schema.table", not {text!r}; put a name with a dot in quotes')
    schema, table = (None if part is None else _unquote(part) for part in match.groups())
    assert table is not None
    return TableName(None if schema is None else check_identifier("table", schema), check_identifier("table", table))


def _unquote(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


#: Columns of a staging table beside the rows' own: whose the row is (rule 2), and its place among them.
PART, ROW = "_holdfast_part", "_holdfast_row"


def new_part() -> int:
    """What the rows of one attempt are known by; table `staged` has the task's whole token for it (rule 2)."""
    return secrets.randbits(63)


def stage_prefix(kind: str, pipeline: str, sink: str, definition: str) -> str:
    """How the names of a sink's staging tables begin: other columns are other tables, so a start may change them."""
    return f"{kind}_{names_digest(pipeline, sink)}_{_digest(definition).hex()[:8]}_"


def lock_key(*parts: str) -> int:
    """The key of an advisory lock."""
    return int.from_bytes(_digest(*parts), "big", signed=True)


def schema_lock(schema: str) -> str:
    """Holds off everybody else who makes tables in holdfast's schema, until the transaction ends."""
    return f"SELECT pg_advisory_xact_lock({lock_key('holdfast schema', schema)})"


@dataclass(frozen=True)
class Gid:
    """The name of a prepared transaction: who made it, for whom, and a nonce that makes it unique (rule 2).

    The names of pipeline and sink are cut for show; `names`, a digest of them, and the lineage tell pipelines apart.
    """

    names: str
    lineage: str
    generation: int
    checkpoint_id: int
    subtask: int


def make_gid(task: Task) -> str:
    """The gid for one attempt; at most 200 bytes."""
    shown = "-".join(escape(name)[:_SHOWN] for name in (task.pipeline, task.sink))
    numbers = f"{task.generation}-{task.checkpoint_id}-{task.subtask}-{task.attempt}"
    return f"hfp1-{shown}-{names_digest(task.pipeline, task.sink)}-{task.lineage}-{numbers}-{uuid.uuid4().hex[:8]}"


def parse_gid(text: str) -> Gid | None:
    """What a gid says, or None for any other text: then it is not ours to touch."""
    match = _GID.fullmatch(text)
    return None if match is None else Gid(match[3], match[4], *(int(match[n]) for n in (5, 6, 7)))


def names_digest(*names: str) -> str:
    """What stands for names of any length: those of pipeline and sink in a gid."""
    return _digest(*names).hex()


def _digest(*parts: str) -> bytes:
    return hashlib.blake2b("-".join(map(escape, parts)).encode(), digest_size=8).digest()
