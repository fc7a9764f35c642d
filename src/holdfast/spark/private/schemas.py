"""Schemas of Spark's as tasks see them in Arrow."""

from __future__ import annotations

import inspect

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from holdfast.errors import ConfigError
from holdfast.spark.private import interfaces


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The rows' schema as the tasks see it."""
    zone = str(frame.sparkSession.conf.get("spark.sql.session.timeZone"))

    def otherwise() -> pa.Schema:
        return in_zone(frame.sparkSession.createDataFrame([], frame.schema).toArrow().schema, zone)

    return interfaces.use("to_arrow_schema", lambda: _told(frame.schema, zone), otherwise)


def arrow_schema_of(schema: StructType, zone: str) -> pa.Schema:
    """A schema of Spark's as tasks see it in a session of this time zone, where there is no session."""

    def otherwise() -> pa.Schema:
        raise ConfigError("this PySpark does not tell the Arrow schema of a stream: use hf.write_stream")

    return interfaces.use("to_arrow_schema", lambda: _told(schema, zone), otherwise)


def _told(schema: StructType, zone: str) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone=zone)
    return in_zone(to_arrow_schema(schema), zone)  # Spark 4.0 and 4.1


def in_zone(schema: pa.Schema, zone: str) -> pa.Schema:
    """The schema with its points in time in this zone, at any depth: tasks get them so, whatever the driver is told."""
    return pa.schema([_zoned(field, zone) for field in schema], schema.metadata)


def _zoned(field: pa.Field, zone: str) -> pa.Field:
    kind = field.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return field.with_type(pa.timestamp(kind.unit, zone))
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_zoned(inner, zone) for inner in kind]))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_zoned(kind.key_field, zone), _zoned(kind.item_field, zone)))
    if pa.types.is_large_list(kind):
        return field.with_type(pa.large_list(_zoned(kind.value_field, zone)))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(_zoned(kind.value_field, zone)))
    return field
