"""Orders from JSON files in `in/` into SQLite and into files, each row once in both: one decision for the two."""

import json
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

FOLDER = Path(__file__).resolve().parents[1]
SINKS = [
    {"sqlite": {"path": f"{FOLDER}/shop.db", "table": "orders"}},
    {"files": {"path": f"{FOLDER}/archive", "format": "parquet"}},
]

# `name` is the pipeline's identity at every endpoint; the checkpoint location is Spark's own, below `storage`.
dp.create_sink("orders", "holdfast", {"name": "shop-orders", "sinks": json.dumps(SINKS)})


@dp.append_flow(target="orders")
def new_orders() -> DataFrame:
    spark = SparkSession.active()
    rows = spark.readStream.schema("id long, word string, amount double").option("maxFilesPerTrigger", 1)
    return rows.json(f"{FOLDER}/in")
