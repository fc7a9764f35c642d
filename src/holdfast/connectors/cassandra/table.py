"""The target table: what it looks like, and whether a DataFrame's rows go into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.committers.cassandra_client import Client
from holdfast.committers.cassandra_settings import quote
from holdfast.connectors.cassandra.limits import Indexed, read_indexed
from holdfast.connectors.cassandra.types import CqlType, created, expected, fits, normalise, parse_type
from holdfast.errors import ConfigError

_DESCRIBE = (
    "SELECT column_name, kind, position, type FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?"
)
_KEYS = ("partition_key", "clustering")


@dataclass(frozen=True)
class Column:
    """One column of the table."""

    name: str
    kind: str
    position: int
    type: CqlType
    #: what an index or a view asks of its values
    indexed: Indexed | None = None

    @property
    def is_key(self) -> bool:
        """Whether it is part of the primary key."""
        return self.kind in _KEYS


@dataclass(frozen=True)
class Table:
    """A table as Cassandra describes it; plain data, goes to the tasks with the sink."""

    keyspace: str
    name: str
    columns: tuple[Column, ...]
    #: names of columns that the commit adds
    added: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.keyspace}.{self.name}"

    @property
    def partition(self) -> tuple[str, ...]:
        """The partition key."""
        return tuple(c.name for c in self.columns if c.kind == "partition_key")

    @property
    def key(self) -> tuple[str, ...]:
        """The primary key: partition key, then clustering columns."""
        return tuple(c.name for c in self.columns if c.kind in _KEYS)

    def column(self, name: str) -> Column | None:
        """By its name."""
        return next((c for c in self.columns if c.name == name), None)

    def __getitem__(self, name: str) -> Column:
        return next(c for c in self.columns if c.name == name)

    def type_of(self, name: str) -> CqlType:
        """The type of a column that is there."""
        return self[name].type

    def to_json(self) -> dict[str, Any]:
        """Plain data, for a committable: which table, and what it was when the rows were checked."""
        columns = [[c.name, c.kind, c.position, str(c.type)] for c in self.columns]
        add = {"add": list(self.added)} if self.added else {}
        return {"keyspace": self.keyspace, "table": self.name, "columns": columns, **add}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Table:
        """Read back."""
        columns = tuple(
            Column(name, kind, position, parse_type(text)) for name, kind, position, text in data["columns"]
        )
        return cls(data["keyspace"], data["table"], columns, tuple(data.get("add", ())))

    def missing(self, schema: pa.Schema) -> list[str]:
        """Columns of a DataFrame that it does not have."""
        return [name for name in schema.names if self.column(name) is None]

    def add_statement(self, name: str, kind: str) -> str:
        """What adds a column."""
        return f"ALTER TABLE {quote(self.keyspace)}.{quote(self.name)} ADD {quote(name)} {kind}"

    def with_new(self, schema: pa.Schema, names: Sequence[str]) -> Table:
        """The table with columns that it is yet to get."""
        new = []
        for name in names:
            kind = created(schema.field(name).type)
            if kind is None:
                raise ConfigError(
                    f"table {self} has no column {name!r}, and which type it is to have for {schema.field(name).type} "
                    "you have to say: add it"
                )
            new.append(Column(name, "regular", -1, parse_type(kind)))
        return Table(self.keyspace, self.name, (*self.columns, *new), tuple(names))

    def add_columns(self, client: Client) -> None:
        """Add the columns that are to be added and are not there."""
        there = {row.column_name for row in client.query(_DESCRIBE, (self.keyspace, self.name))}
        for name in self.added:
            if name not in there:
                client.session.execute(self.add_statement(name, str(self.type_of(name))))

    def insert(self, names: list[str]) -> str:
        """The statement for rows of these columns; its last value is the write time."""
        columns, marks = ", ".join(map(quote, names)), ", ".join("?" * len(names))
        where = f"{quote(self.keyspace)}.{quote(self.name)}"
        return f"INSERT INTO {where} ({columns}) VALUES ({marks}) USING TIMESTAMP ?"  # noqa: S608  quoted

    def check_columns(self, schema: pa.Schema) -> None:
        """Every reason why rows of these columns cannot go in, by name."""
        problems = []
        for name in schema.names:
            if schema.names.count(name) > 1:
                problems.append(f"the DataFrame has several columns {name!r}")
            else:
                problems += self._check_column(schema.field(name))
        problems += [
            f"the DataFrame has no column {name!r}, which is part of the primary key ({', '.join(self.key)})"
            for name in self.key
            if name not in schema.names
        ]
        if problems:
            raise ConfigError(f"rows do not go into table {self}: {'; '.join(dict.fromkeys(problems))}")

    def _check_column(self, field: pa.Field) -> list[str]:
        column = self.column(field.name)
        if column is None:
            there = ", ".join(c.name for c in self.columns)
            return [
                f"it has no column {field.name!r} (upper and lower case count; it has {there}): add it, or drop it "
                "from the query"
            ]
        if column.kind == "static":
            return [
                f"column {field.name!r} is static, one value for a whole partition, on which the rows of a checkpoint "
                "need not agree: write it from a query of its own into a table of its own"
            ]
        if column.kind in _KEYS and column.type.arguments:
            return [f"column {field.name!r} of the primary key is {column.type}: this sink takes plain keys only"]
        if column.type.name == "list" and not column.type.frozen:
            return [
                f"column {field.name!r} is a list, and sending a list again doubles its elements: make it "
                f"frozen<{column.type}>, or a set"
            ]
        if not fits(column.type, field.type):
            wanted = expected(column.type)
            way = f"it takes {wanted}, so cast it in the query" if wanted else "this sink does not write that type"
            return [f"column {field.name!r} is {column.type} and the DataFrame's is {field.type}: {way}"]
        return []

    def normalised_key(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The key columns as Cassandra compares them."""
        arrays = [normalise(batch.column(name), self.type_of(name)) for name in self.key]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.key))


def describe(client: Client, keyspace: str, name: str) -> Table:
    """Read the table; ConfigError when it is not there, or counts."""
    rows = client.query(_DESCRIBE, (keyspace, name))
    where = f"{keyspace}.{name} in Cassandra at {client.settings.hosts}"
    if not rows:
        raise ConfigError(f"there is no table {where} (upper and lower case count): create it, with its primary key")
    order = {kind: number for number, kind in enumerate((*_KEYS, "static", "regular"))}
    rows.sort(key=lambda row: (order[row.kind], row.position, row.column_name))
    indexed = read_indexed(client, keyspace, name)
    columns = tuple(
        Column(row.column_name, row.kind, row.position, parse_type(row.type), indexed.get(row.column_name))
        for row in rows
    )
    counters = [c.name for c in columns if c.type.name == "counter"]
    if counters:
        raise ConfigError(
            f"table {where} has the counter {', '.join(counters)}: counting again what is sent again would count it "
            "twice, so this sink does not write counters. Aggregate in the query and write the total as bigint"
        )
    return Table(keyspace, name, columns)
