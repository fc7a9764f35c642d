"""`from_debezium`: the changes of a table, as Debezium writes them into Kafka, as rows with their kind and order."""

from __future__ import annotations

from typing import Annotated

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from holdfast.core.options import Columns, Rule, checked, one_of, text
from holdfast.errors import ConfigError, first_line

BAD = ("fail", "null")
_SCHEMA = Rule(
    "the columns of the table, such as 'id bigint, name string', or a StructType",
    lambda value: bool(value.fields if isinstance(value, t.StructType) else isinstance(value, str) and value.strip()),
)
_Name = Annotated[str, text("the name of a column")]
_CORRUPT, _CHANGE, _KEY = "__holdfast_corrupt", "__holdfast_change", "__holdfast_key"
#: of the source's log: PostgreSQL's position; MySQL's file and place in it, which has 32 bits; else the time
_ORDER = """coalesce(
    try_cast(source['lsn'] AS bigint),
    try_cast(regexp_extract(source['file'], '([0-9]+)$', 1) AS bigint) * 8589934592
        + try_cast(source['pos'] AS bigint),
    try_cast(source['ts_ms'] AS bigint),
    ts_ms)"""


@checked
def from_debezium(
    df: DataFrame,
    *,
    schema: Annotated[str | t.StructType, _SCHEMA],
    value: _Name = "value",
    key: _Name | None = None,
    op: _Name = "op",
    position: _Name = "position",
    order: Annotated[str, text("an expression in Spark SQL")] | None = None,
    keep: Columns = (),
    bad: Annotated[str, one_of(*BAD)] = "fail",
) -> DataFrame:
    """Unwrap the messages of a Debezium topic into the columns of the table, `op` and `position`.

    `schema` are the columns of the table, as a struct or as DDL (`"id bigint, name string"`), of which the row after a
    change is given, and of a delete the row before it. `op` is `c`, `u`, `r` (created, updated, read in a snapshot) or
    `d`, ready for `delete_when="op = 'd'"`; `position` says which of two changes of one row is the later one, ready for
    `order_by`. It is the place in the log of PostgreSQL or MySQL, else the time; `order` is another expression for it
    over `source` (a map), `ts_ms` and the columns of `df`, such as `offset`.

    Messages may be JSON with `schema` and `payload` or without. Those without a value, which follow each delete, are
    left out. `key` names the column of the messages' key: it completes a delete that says no more than its key. `keep`
    are columns of `df` to keep. What is no change fails the query; with `bad="null"` it becomes a row without `op`,
    for a route's `reject="op IS NULL"`.
    """
    row = _row(schema)
    for option, column in (("value", value), ("key", key), *(("keep", name) for name in keep)):
        if column is not None and column not in df.columns:
            raise ConfigError(
                f"from_debezium: {option}={column!r} is not a column of the DataFrame: it has {', '.join(df.columns)}"
            )
    names = [*row.fieldNames(), op, position, *keep]
    twice = sorted({name for name in names if [n.lower() for n in names].count(name.lower()) > 1})
    if twice:
        raise ConfigError(
            f"from_debezium: two columns would be called {twice[0]!r}: give op, position or the columns of keep others"
        )
    text = f.col(_quoted(value)).cast("string")
    parsed = f.from_json(text, _message(row), {"columnNameOfCorruptRecord": _CORRUPT})
    changes = df.where(f.col(_quoted(value)).isNotNull()).withColumn(_CHANGE, parsed)
    change, known = f.col(_CHANGE), ("c", "u", "r", "d")
    kind = _inside(change, "op")
    good = f.coalesce(change[_CORRUPT].isNull() & kind.isin(*known) & _has_row(change, kind), f.lit(False))
    if bad == "fail":
        told = f.concat(
            f.lit("from_debezium: a message is no change of Debezium's that fits the schema. Correct the schema, or "),
            f.lit("set such messages aside: bad='null' and a route's reject='op IS NULL'. It begins: "),
            f.substring(text, 1, 200),
        )
        changes = changes.where(f.when(good, f.lit(True)).otherwise(f.raise_error(told)))
    given = {"source": _inside(change, "source"), "ts_ms": _inside(change, "ts_ms")}
    if key is not None:
        given[_KEY] = f.from_json(f.col(_quoted(key)).cast("string"), _wrapped(row))
    changes = changes.withColumns(given)
    fields = [f.when(good, _field(change, kind, name, key is not None)).alias(name) for name in row.fieldNames()]
    try:
        return changes.select(
            *fields,
            f.when(good, kind).alias(op),
            f.when(good, f.expr(order or _ORDER)).alias(position),
            *(f.col(_quoted(name)) for name in keep),
        )
    except PySparkException as error:
        raise ConfigError(f"from_debezium: order={order!r}: {first_line(error)}") from error


def _row(schema: str | t.StructType) -> t.StructType:
    """The columns of the table; all may be without a value, as in a delete."""
    try:
        found = t.DataType.fromDDL(schema) if isinstance(schema, str) else schema
    except PySparkException as error:
        raise ConfigError(f"from_debezium: schema={schema!r}: {first_line(error)}") from error
    if not isinstance(found, t.StructType):
        raise ConfigError(f"from_debezium: schema={schema!r} is a type, not columns with their types")
    return t.StructType([t.StructField(field.name, field.dataType) for field in found])


def _envelope(row: t.StructType) -> t.StructType:
    source = t.MapType(t.StringType(), t.StringType())
    return t.StructType().add("before", row).add("after", row).add("op", "string").add("ts_ms", "long").add(
        "source", source
    )  # fmt: skip


def _message(row: t.StructType) -> t.StructType:
    """With the wrapper and without it: which of both it is, each message says."""
    envelope = _envelope(row)
    return t.StructType([*envelope.fields]).add("payload", envelope).add(_CORRUPT, "string")


def _wrapped(row: t.StructType) -> t.StructType:
    return t.StructType([*row.fields]).add("payload", row)


def _inside(change: Column, field: str) -> Column:
    return f.when(change["payload"].isNotNull(), change["payload"][field]).otherwise(change[field])


def _has_row(change: Column, kind: Column) -> Column:
    """A delete may say no more than its key; of any other change the row is the point."""
    return (kind == "d") | _inside(change, "after").isNotNull()


def _field(change: Column, kind: Column, name: str, keyed: bool) -> Column:
    before = _inside(change, "before")[name]
    if keyed:
        in_key = f.col(_KEY)
        before = f.coalesce(
            before, f.when(in_key["payload"].isNotNull(), in_key["payload"][name]).otherwise(in_key[name])
        )
    return f.when(kind == "d", before).otherwise(_inside(change, "after")[name])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
