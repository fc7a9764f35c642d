"""Debezium's messages: unwrapped, and from Kafka into PostgreSQL and a compacted topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import ConfigError
from tests.integration.test_kafka_sink import Make, consume
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer, execute

pytestmark = pytest.mark.spark
SCHEMA = "id bigint, name string, amount double"
Row = dict[str, Any] | None


def message(op: str, before: Row, after: Row, source: dict[str, Any], *, wrapped: bool = False) -> str:
    change = {"before": before, "after": after, "op": op, "ts_ms": 1_700_000_000_000, "source": source}
    return json.dumps({"schema": {"type": "struct", "fields": []}, "payload": change} if wrapped else change)


def unwrapped(spark: SparkSession, *messages: tuple[str | None, str | None], **options: Any) -> list[tuple[Any, ...]]:
    frame = spark.createDataFrame(list(messages), "key string, value string")
    return [tuple(row) for row in hf.from_debezium(frame, schema=SCHEMA, **options).collect()]


def person(number: int, name: str | None = None, amount: float | None = None) -> dict[str, Any]:
    return {"id": number, "name": name, "amount": amount}


def test_a_change_is_the_row_its_kind_and_its_place(spark: SparkSession) -> None:
    postgres = {"connector": "postgresql", "lsn": 2**40 + 7, "ts_ms": 5, "snapshot": "false", "sequence": '["1","2"]'}
    found = unwrapped(
        spark,
        ("{}", message("c", None, person(1, "ann", 2.5), postgres)),
        ("{}", message("u", person(1, "ann", 2.5), person(1, "eve", 3), postgres, wrapped=True)),
        ("{}", message("r", None, person(2), {**postgres, "snapshot": "last", "lsn": 3})),
        ("{}", message("d", person(1, "eve", 3), None, postgres, wrapped=True)),
        ("{}", None),
    )
    place = 2**40 + 7
    assert found == [
        (1, "ann", 2.5, "c", place), (1, "eve", 3.0, "u", place), (2, None, None, "r", 3), (1, "eve", 3.0, "d", place),
    ]  # fmt: skip


def test_places_of_other_databases_and_of_ones_own(spark: SparkSession) -> None:
    sources: list[dict[str, Any]] = [
        {"connector": "mysql", "file": "mysql-bin.000009", "pos": 4_000_000_000, "ts_ms": 9},
        {"connector": "mysql", "file": "mysql-bin.000010", "pos": 4, "ts_ms": 9},
        {"connector": "sqlserver", "change_lsn": "00000025:00000448:0003", "ts_ms": 17},
        {},
    ]
    messages = [("{}", message("c", None, person(n), source)) for n, source in enumerate(sources)]
    found = [row[4] for row in unwrapped(spark, *messages)]
    assert found == [9 * 2**33 + 4_000_000_000, 10 * 2**33 + 4, 17, 1_700_000_000_000]
    own = unwrapped(
        spark, *messages[2:3], order="concat(source.change_lsn, key)", op="kind", position="at", keep=["key"]
    )
    assert own == [(2, None, None, "c", "00000025:00000448:0003{}", "{}")]


def test_a_delete_that_says_no_more_than_its_key(spark: SparkSession) -> None:
    keys = [json.dumps({"id": 7}), json.dumps({"schema": {}, "payload": {"id": 8}})]
    bare, partly = message("d", None, None, {"lsn": 1}), message("d", {"id": 8}, None, {"lsn": 2})
    assert unwrapped(spark, *zip(keys, [bare, partly], strict=True), key="key") == [
        (7, None, None, "d", 1), (8, None, None, "d", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "not JSON",
        '{"id": 1}',
        message("c", None, None, {}),
        message("t", None, None, {}),
        message("c", None, {"id": 1, "amount": "much"}, {}),
        message("u", None, {"id": "one"}, {}, wrapped=True),
    ],
)
def test_what_is_no_change_fails_or_can_be_set_aside(spark: SparkSession, text: str) -> None:
    good = message("c", None, person(1), {"lsn": 1})
    with pytest.raises(PySparkException, match=r"no change of Debezium's that fits the schema.*bad='null'"):
        unwrapped(spark, ("{}", good), ("{}", text))
    assert unwrapped(spark, ("{}", good), ("{}", text), bad="null") == [(1, None, None, "c", 1), (None,) * 5]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"schema": "id nonsense"}, "schema='id nonsense'"),
        ({"schema": ""}, "schema must be the columns of the table"),
        ({"schema": SCHEMA, "value": "body"}, "value='body' is not a column of the DataFrame: it has key, value"),
        ({"schema": SCHEMA, "keep": ["offset"]}, "keep='offset' is not a column"),
        ({"schema": "id bigint, op string"}, "two columns would be called 'op'"),
        ({"schema": SCHEMA, "bad": "skip"}, "bad must be one of fail, null, not 'skip'"),
        ({"schema": SCHEMA, "order": "nowhere"}, "order='nowhere'"),
    ],
)
def test_options_are_checked_at_once(spark: SparkSession, options: dict[str, Any], wrong: str) -> None:
    frame = spark.createDataFrame([("a", "b")], "key string, value string")
    with pytest.raises(ConfigError, match=wrong):
        hf.from_debezium(frame, **options)


@pytest.mark.contract("I2")
def test_a_table_follows_another_by_way_of_kafka(
    spark: SparkSession, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, tmp_path: Path
) -> None:
    """Two checkpoints, the second with what a connector sends again after its restart: older changes."""
    changes, mirror, dsn = topic("changes", 2), topic("mirror", 1), postgres.new_database()
    execute(dsn, "CREATE TABLE people (id bigint PRIMARY KEY, name text NOT NULL, amount float8, position bigint)")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def send(number: int, op: str, row: Row, lsn: int, *, wrapped: bool = False) -> None:
        before, after = (row or {"id": number}, None) if op == "d" else (None, row)
        key = json.dumps({"id": number})
        text = message(op, before, after, {"lsn": lsn}, wrapped=wrapped)
        for value in (text, None) if op == "d" else (text,):
            producer.produce(changes, value, key=key, partition=number % 2)

    def run() -> None:
        assert producer.flush(30) == 0
        frame = hf.from_debezium(
            hf.read_kafka(spark, bootstrap_servers=kafka.bootstrap, topics=[changes], group_id="people"),
            schema=SCHEMA,
        )
        table = hf.PostgresSink(
            dsn, "people", mode="upsert", key=["id"], order_by="position", delete_when="op = 'd'", name="table"
        )
        sinks = [
            hf.route(table, select=["id", "name", "amount", "position"]),
            hf.KafkaSink(
                kafka.bootstrap, mirror, key="string(id)", value="to_json(struct(id, name))", delete_when="op = 'd'"
            ),
        ]
        writer = hf.write_stream(frame, sinks, name="people", checkpoint_location=str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    send(1, "r", person(1, "ann", 1), 10)
    send(2, "c", person(2, "bob", 2), 20, wrapped=True)
    send(3, "c", person(3, "eve", 3), 30)
    send(1, "u", person(1, "anna", 4), 40)
    send(2, "d", None, 50)
    run()
    assert execute(dsn, "SELECT id, name, position FROM people ORDER BY id") == [(1, "anna", 40), (3, "eve", 30)]
    send(2, "c", person(2, "bob", 2), 20)
    send(1, "r", person(1, "ann", 1), 10)
    send(3, "d", person(3, "eve", 3), 60, wrapped=True)
    send(4, "c", person(4, "zoe", 5), 70)
    run()
    assert execute(dsn, "SELECT id, name, position FROM people ORDER BY id") == [(1, "anna", 40), (4, "zoe", 70)]
    sent = consume(kafka, mirror)
    assert [r["key"] for r in sent if r["value"] is None] == [b"2", b"3"]
    assert [json.loads(r["value"])["name"] for r in sent if r["key"] == b"1"] == ["ann", "anna", "ann"]
