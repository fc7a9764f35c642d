"""`schema_change`: what a sink does with a column that its table or its files do not have. One meaning in every sink.

`freeze` refuses it at the start, with the statement that would add it; `evolve` adds it with the commit of the first
checkpoint that has it; `discard-column` leaves it out of what is written, and counts the values. A type that does not
fit is refused in each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Annotated

import pyarrow as pa

from holdfast.core.options import one_of
from holdfast.errors import ConfigError

logger = logging.getLogger("holdfast")
FREEZE, EVOLVE, DISCARD = CHOICES = ("freeze", "evolve", "discard-column")
#: the option's type
SchemaChange = Annotated[str, one_of(*CHOICES)]


def ways(statements: Sequence[str]) -> str:
    """What to do about new columns, for an error."""
    return (
        f"add it with {'; '.join(statements)}; or let the sink do it (schema_change='evolve'), leave it out and count "
        "its values (schema_change='discard-column'), or select other columns"
    )


def discarded(sink: str, where: str, missing: Sequence[str], needed: Collection[str]) -> tuple[str, ...]:
    """The columns to leave out, told in the log; ConfigError for one that the sink cannot do without."""
    wanted = [column for column in missing if column in needed]
    if wanted:
        raise ConfigError(
            f"sink {sink!r}: {where} has no column {', '.join(wanted)}, which is part of key or order_by and cannot be "
            "left out: add it, or name other columns"
        )
    if missing:
        logger.warning("sink %s: %s has no column %s: it is left out, and its values are counted", sink, where,
                       ", ".join(missing))  # fmt: skip
    return tuple(missing)


def without_columns(schema: pa.Schema, columns: Collection[str]) -> pa.Schema:
    """The rest."""
    return pa.schema([field for field in schema if field.name not in columns]) if columns else schema
