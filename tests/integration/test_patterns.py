"""Tables, topics and folders by columns, and dead letters, in real stores: PostgreSQL, Cassandra, Kafka, files (R6)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from tests.integration.helpers import add_file, read_files, select
from tests.integration.test_kafka_sink import consume
from tests.servers.cassandra import CassandraServer
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer, execute, left_behind

pytestmark = pytest.mark.spark
#: ids of the input; of every six, one has a word that makes no name
IDS = range(24)
BAD = [i for i in IDS if i % 6 == 5]


def run(spark: SparkSession, folder: Path, sink: Any, dead: Any, files: int = 2) -> None:
    """All there is; words are w0, w1, w2 and, for a few rows, a/b."""
    for number in range(files):
        if not (folder / "in" / f"{number:05d}.json").exists():
            add_file(folder / "in", number, range(number * 12, number * 12 + 12))
    frame = read_files(spark, folder / "in").selectExpr("id", "IF(id % 6 = 5, 'a/b', word) AS word")
    writer = hf.write_stream(
        frame, sink, name="patterns", checkpoint_location=str(folder / "ck"),
        dead_letters=hf.DeadLetters(dead, max_ratio=None),
    )  # fmt: skip
    writer.trigger(availableNow=True).start().awaitTermination()


def good(word: int) -> list[int]:
    return [i for i in IDS if i % 3 == word and i not in BAD]


def replayed(folder: Path) -> int:
    result = CliRunner().invoke(app, ["dead-letters", "replay", str(folder / "ck"), "--yes", "--json"])
    assert result.exit_code == 0, result.output
    return int(json.loads(result.stdout)["letters"])


@pytest.mark.contract("R6")
def test_tables_of_postgres_and_letters_there(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> None:
    dsn = postgres.new_database()
    dead = hf.PostgresSink(dsn, "letters", create=True, name="letters")
    run(spark, tmp_path, hf.PostgresSink(dsn, "orders_{word}", create=True, name="orders"), dead)
    for word in range(3):
        assert [row[0] for row in execute(dsn, f"SELECT id FROM orders_w{word} ORDER BY id")] == good(word)
    found = execute(dsn, 'SELECT content, "column", sink FROM letters')
    assert sorted((json.loads(content)["id"], column, sink) for content, column, sink in found) == [
        (i, "word", "orders") for i in BAD
    ]
    assert left_behind(dsn) == []


def test_letters_go_again_into_a_table_of_postgres_that_takes_them_now(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    dsn = postgres.new_database()
    execute(dsn, "CREATE TABLE orders (id bigint, word varchar(2))")
    for files in (2, 3, 3):
        sink, dead = (hf.PostgresSink(dsn, name, create=True, name=name) for name in ("orders", "letters"))
        run(spark, tmp_path, sink, dead, files)
        if files == 2:  # the mend
            assert execute(dsn, "SELECT count(*) FROM letters") == [(len(BAD),)]
            execute(dsn, "ALTER TABLE orders ALTER word TYPE text")
            assert replayed(tmp_path) == len(BAD)
    assert [row[0] for row in execute(dsn, "SELECT id FROM orders ORDER BY id")] == list(range(36))
    assert execute(dsn, "SELECT count(*) FROM letters") == [(len(BAD),)]
    assert replayed(tmp_path) == 0
    assert left_behind(dsn) == []


@pytest.mark.contract("R6")
def test_tables_of_cassandra_and_letters_there(spark: SparkSession, cassandra: CassandraServer, tmp_path: Path) -> None:
    keyspace = f"patterns_{uuid.uuid4().hex[:8]}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    for word in range(2):  # there is no table for w2
        cassandra.execute(f"CREATE TABLE {keyspace}.orders_w{word} (id bigint PRIMARY KEY, word text)")
    cassandra.execute(
        f"CREATE TABLE {keyspace}.letters (letter text PRIMARY KEY, pipeline text, checkpoint_id bigint, at timestamp, "
        'sink text, "column" text, reason text, content text)'
    )
    points = {**cassandra.options, "keyspace": keyspace}
    sink = hf.CassandraSink(**points, table="orders_{word}", name="orders")
    run(spark, tmp_path, sink, hf.CassandraSink(**points, table="letters", name="letters"))
    for word in range(2):
        assert sorted(r["id"] for r in cassandra.execute(f"SELECT id FROM {keyspace}.orders_w{word}")) == good(word)
    letters = [json.loads(row["content"])["id"] for row in cassandra.execute(f"SELECT content FROM {keyspace}.letters")]
    assert sorted(letters) == sorted([*BAD, *good(2)])


@pytest.mark.contract("R6")
def test_topics_of_kafka_and_letters_in_transactions(
    spark: SparkSession, kafka: KafkaBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    base, letters = f"p{uuid.uuid4().hex[:8]}", topic("letters")
    topics = [f"{base}.w{word}" for word in range(3)]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for made in admin.create_topics([NewTopic(name, 2, 1) for name in topics]).values():
        made.result(60)
    sink = hf.KafkaSink(kafka.bootstrap, base + ".{word}", key="string(id)", value="to_json(struct(*))", name="orders")
    run(spark, tmp_path, sink, hf.KafkaSink(kafka.bootstrap, letters, name="letters"))
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("kafka.isolation.level", "read_committed")
    rows = reader.option("subscribePattern", f"{base}.*").load().collect()
    for word in range(3):
        assert sorted(int(row.key) for row in rows if row.topic == f"{base}.w{word}") == good(word)
    dead = [json.loads(row["value"]) for row in consume(kafka, letters)]
    assert sorted(int(json.loads(letter["content"])["key"]) for letter in dead) == BAD
    assert {letter["column"] for letter in dead} == {"word"}


@pytest.mark.contract("R6")
def test_folders_and_letters_in_files(spark: SparkSession, tmp_path: Path) -> None:
    every = hf.Rolling(age="0s")
    sink = hf.FileSink(tmp_path / "out" / "{word}", rolling=every, name="orders")
    run(spark, tmp_path, sink, hf.FileSink(tmp_path / "dead", "json", rolling=every, name="letters"))
    for word in range(3):
        found = spark.read.parquet(str(tmp_path / "out" / f"w{word}")).collect()
        assert sorted(row.id for row in found) == good(word)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["w0", "w1", "w2"]
    letters = spark.read.json(str(tmp_path / "dead")).collect()
    assert sorted(json.loads(row.content)["id"] for row in letters) == BAD


def test_a_column_that_is_missing_is_an_error_when_the_writer_is_made(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, range(3))
    frame = read_files(spark, tmp_path / "in")
    sink = hf.SqliteSink(tmp_path / "out.db", "orders_{nope}", name="orders")
    with pytest.raises(hf.HoldfastError, match=r"table='orders_\{nope\}': 'nope' is not among the columns id, word"):
        hf.write_stream(frame, sink, name="p", checkpoint_location=str(tmp_path / "ck"))
    routed = hf.route(hf.SqliteSink(tmp_path / "out.db", "orders_{word}", name="orders"), select=["id"])
    with pytest.raises(hf.HoldfastError, match="'word' is not among the columns id"):
        hf.write_stream(frame, routed, name="p", checkpoint_location=str(tmp_path / "ck"))
    assert not (tmp_path / "out.db").exists() or select(tmp_path / "out.db", "SELECT 1") == [(1,)]
