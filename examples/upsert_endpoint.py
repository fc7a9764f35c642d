"""Upserts in under 40 lines: one file for each key, so that writing a row again changes nothing.

Run it: python examples/upsert_endpoint.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import urllib.parse
from pathlib import Path

import holdfast as hf
from holdfast.testing import audit


class KeyFiles(hf.IdempotentSink):
    """Effectively-once into a folder that all machines reach, one JSON file a key; readers can see rows early."""

    name = "key-files"

    def __init__(self, folder, key):
        self.folder, self.key = Path(folder).absolute(), key

    def open(self, run):
        self.folder.mkdir(parents=True, exist_ok=True)

    def connect(self, task):
        return self.folder / f".{task.token}"

    def upsert(self, connection, batch):
        for row in batch.to_pylist():
            with connection.open("w", encoding="utf-8") as file:
                json.dump(row, file, default=str)
                file.flush()
                os.fsync(file.fileno())
            name = urllib.parse.quote(str(row[self.key]), safe="")
            connection.replace(self.folder / f"{name}.json")

    def disconnect(self, connection):
        connection.unlink(missing_ok=True)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def read(folder):
    """All rows, one for each key."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in Path(folder).glob("[!.]*.json")]


def main():
    spark = hf.session("upsert-endpoint")
    with tempfile.TemporaryDirectory() as folder:
        inbox, out = Path(folder, "in"), Path(folder, "out")
        inbox.mkdir()
        for number in range(3):
            rows = [{"account": f"a{n}", "amount": 1} for n in range(10)] * 2
            (inbox / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
        lines = (
            spark.readStream.schema("account string, amount long").option("maxFilesPerTrigger", "1").json(str(inbox))
        )
        totals = lines.groupBy("account").sum("amount").withColumnRenamed("sum(amount)", "total")
        sink = KeyFiles(out, key="account")
        writer = hf.write_stream(totals, sink, name="example", checkpoint_location=f"{folder}/checkpoint")
        writer.outputMode("update").trigger(availableNow=True).start().awaitTermination()
        rows = read(out)
    spark.stop()
    report = audit((f"a{n}" for n in range(10)), [row["account"] for row in rows if row["total"] == 6])
    print(f"totals kept: {report}")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
