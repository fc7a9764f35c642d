"""What a streaming query needs of Spark, done once in a Java that keeps its classes: see class_archive."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from holdfast.connectors.sqlite import SqliteSink
from holdfast.errors import HoldfastError
from holdfast.spark import private
from holdfast.spark.class_archive import JAVA_OPTIONS
from holdfast.spark.session import session
from holdfast.spark.stream import write_stream

_SCHEMA = "id long, word string, at timestamp"
#: seconds for Java to write the archive
_AT_MOST = 300.0


def train(archive: Path, work: Path) -> int:
    """Run queries of several kinds and keep the classes they needed; Java's exit code."""
    told = f"-Xlog:disable -XX:ArchiveClassesAtExit={archive}"
    spark = session("classes", state="rocksdb", conf={"spark.master": "local[2]", JAVA_OPTIONS: told})
    spark.sparkContext.setLogLevel("OFF")
    _input(work / "in")
    _rows(spark, work)
    _windows(spark, work)
    _source_of_the_new_kind(spark, work)
    return private.stop_java(spark, _AT_MOST)


def _input(folder: Path) -> None:
    folder.mkdir(parents=True)
    for file in range(2):
        rows = [{"id": n, "word": "abc"[n % 3], "at": f"2026-01-01 00:0{file}:{n:02}"} for n in range(20)]
        (folder / f"{file}.json").write_text("\n".join(map(json.dumps, rows)))


def _rows(spark: SparkSession, work: Path) -> None:
    """Two batches of plain rows."""
    source = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(work / "in"))
    parsed = source.select(f.from_json(f.to_json(f.struct("id", "word", "at")), _SCHEMA).alias("row")).select("row.*")
    sink = SqliteSink(work / "rows.db", "rows")
    writer = write_stream(parsed.repartition(2), [sink], name="rows", checkpoint_location=work / "rows")
    writer.trigger(availableNow=True).start().awaitTermination()


def _windows(spark: SparkSession, work: Path) -> None:
    """State, windows and a watermark."""
    source = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(work / "in"))
    windows = source.withWatermark("at", "10 seconds").groupBy(f.window("at", "30 seconds"), "word")
    counts = windows.agg(f.count("*").alias("n"), f.sum("id").alias("total"))
    flat = counts.select(f.col("window.start").cast("string").alias("start"), "word", "n", "total")
    sink = SqliteSink(work / "windows.db", "windows", mode="upsert", key=["start", "word"])
    writer = write_stream(flat, [sink], name="windows", checkpoint_location=work / "windows")
    writer.outputMode("update").trigger(availableNow=True).start().awaitTermination()


def _source_of_the_new_kind(spark: SparkSession, work: Path) -> None:
    """Kafka's is of this kind, too; it comes with Spark."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = rate.writeStream.format("noop").option("checkpointLocation", str(work / "rate"))
    writer.trigger(once=True).start().awaitTermination(60)


if __name__ == "__main__":
    code = train(Path(sys.argv[1]), Path(sys.argv[2]))
    if code != 0:
        raise HoldfastError(f"Java ended with code {code}")
