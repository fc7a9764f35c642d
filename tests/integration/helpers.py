"""Small pieces the Spark tests share."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long, word string, at timestamp"


def add_file(folder: Path, number: int, ids: Iterable[int], *, minute: int = 0) -> None:
    """Put one input file in place, as a whole."""
    folder.mkdir(exist_ok=True)
    rows = [{"id": i, "word": f"w{i % 3}", "at": f"2024-01-01T00:{minute:02d}:{i % 60:02d}Z"} for i in ids]
    temporary = folder / f".{number}.tmp"
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Spark takes files in the order of their modification times.
    os.utime(temporary, (1_700_000_000 + number, 1_700_000_000 + number))
    temporary.rename(folder / f"{number:05d}.json")


def read_files(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream over the folder, one file a batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def select(database: Path, statement: str) -> list[tuple[Any, ...]]:
    """Rows of an SQLite file."""
    connection = sqlite3.connect(database)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def ids(database: Path, table: str = "orders") -> list[int]:
    """The ids in a table, sorted."""
    return sorted(row[0] for row in select(database, f"SELECT id FROM {table}"))
