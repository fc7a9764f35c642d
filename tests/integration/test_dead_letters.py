"""Dead letters with Spark: a bad row is set aside with its reason, in the same decision, and the good ones arrive."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

import holdfast as hf
from tests.integration.helpers import add_file, ids, read_files, select
from tests.servers.kafka import KafkaBroker

pytestmark = pytest.mark.spark
BAD = "CASE WHEN id % 4 = 3 THEN CAST(X'6162ff' AS STRING) ELSE word END"


def run(spark: SparkSession, folder: Path, sinks: Any, dead: hf.DeadLetters | None) -> None:
    """All there is; every fourth row has text that is not UTF-8."""
    frame = read_files(spark, folder / "in").select("id", expr(BAD).alias("word"))
    location = str(folder / "checkpoint")
    writer = hf.write_stream(frame, sinks, name="dead", checkpoint_location=location, dead_letters=dead)
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.contract("R6")
def test_refused_and_rejected_rows_are_letters_and_the_others_arrive_everywhere(
    spark: SparkSession, tmp_path: Path, kafka: KafkaBroker, topic: Callable[..., str]
) -> None:
    for number in range(3):
        add_file(tmp_path / "in", number, range(number * 8, number * 8 + 8))
    out, letters = tmp_path / "out.db", topic("letters")
    sink = hf.SqliteSink(out, "orders", name="orders")
    numbers = hf.route(hf.SqliteSink(out, "numbers", name="numbers"), select=["id"], reject="id = 5")
    dead = hf.KafkaSink(kafka.bootstrap, letters, mode="write-ahead", name="letters")
    run(spark, tmp_path, [sink, numbers], hf.DeadLetters(dead))
    assert ids(out) == [i for i in range(24) if i % 4 != 3]
    assert ids(out, "numbers") == [i for i in range(24) if i != 5]
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap).option("subscribe", letters)
    found = [json.loads(row.value) for row in reader.load().collect()]
    of = sorted((letter["sink"], json.loads(letter["content"])["id"]) for letter in found)
    assert of == [("numbers", 5), *(("orders", i) for i in range(3, 24, 4))]
    assert {letter["checkpoint_id"] for letter in found} == {0, 1, 2}
    refused = next(letter for letter in found if letter["sink"] == "orders")
    assert (refused["column"], "is not UTF-8" in refused["reason"]) == ("word", True)
    assert next(letter for letter in found if letter["sink"] == "numbers")["reason"] == "rejected: id = 5"


def test_past_the_limit_nothing_is_decided_and_without_letters_the_error_counts(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_file(tmp_path / "in", 0, range(20))
    out = tmp_path / "out.db"
    dead = hf.DeadLetters(hf.SqliteSink(out, "dead", name="letters"), max_rows=4)
    with pytest.raises(hf.HoldfastError, match=r"(?s)more than 4 rows are bad.*allow max_rows=4"):
        run(spark, tmp_path, hf.SqliteSink(out, "orders", name="orders"), dead)
    with pytest.raises(hf.HoldfastError, match=r"(?s)5 of its 20 rows.*The first: .*\"id\": 3.*\"id\": 7.*\"id\": 11"):
        run(spark, tmp_path, hf.SqliteSink(out, "orders", name="orders"), None)
    assert ids(out) == []
    dead = hf.DeadLetters(hf.SqliteSink(out, "dead", name="letters"), max_rows=5)
    run(spark, tmp_path, hf.SqliteSink(out, "orders", name="orders"), dead)
    assert len(ids(out)) == 15
    assert sorted(row[0] for row in select(out, "SELECT sink FROM dead")) == ["orders"] * 5
