"""Kafka to Kafka and to SQLite with one decision: every order reaches both, or neither, however often this is killed.

Run it: python examples/kafka_and_sqlite.py --servers localhost:9092 --source orders --target paid
--checkpoint /tmp/paid --database /tmp/paid.db
"""

from __future__ import annotations

import argparse

import holdfast as hf


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="bootstrap servers, host:port[,host:port]")
    parser.add_argument("--source", required=True, help="topic to read")
    parser.add_argument("--target", required=True, help="topic to write")
    parser.add_argument("--database", required=True, help="SQLite file to write")
    parser.add_argument("--checkpoint", required=True, help="checkpoint location")
    parser.add_argument("--rows", type=int, default=10_000, help="rows in one checkpoint, at most")
    parser.add_argument("--once", action="store_true", help="end when all rows that are there now are done")
    options = parser.parse_args()
    spark = hf.session("kafka-and-sqlite", kafka=True)
    rows = hf.read_kafka(
        spark,
        bootstrap_servers=options.servers,
        topics=[options.source],
        group_id="kafka-and-sqlite",
        start=hf.StartFrom.group_offsets(fallback="earliest"),
        options={"maxOffsetsPerTrigger": str(options.rows)},
    ).selectExpr("string(key) AS key", "string(value) AS value")
    sinks = [hf.KafkaSink(options.servers, options.target), hf.SqliteSink(options.database, "orders")]
    writer = hf.write_stream(rows, sinks, name="kafka-and-sqlite", checkpoint_location=options.checkpoint)
    trigger = {"availableNow": True} if options.once else {"processingTime": "5 seconds"}
    writer.trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    main()
