"""Kafka to Kafka, exactly once: orders in, the total of every customer and minute out.

Run it: python examples/window_totals.py --servers localhost:9092 --source orders --target totals
--checkpoint /tmp/totals

An order is a JSON value {"id": 1, "customer": "ann", "amount": 3, "at": "2024-01-01T00:00:05Z"}. A total is written
once, when its minute is over: when an order has come that is a minute and ten seconds younger. Kill the program
whenever you like and start it again.
"""

from __future__ import annotations

import argparse

from pyspark.sql import functions as f

import holdfast as hf


def totals(spark, servers, source, rows):
    """One row for each customer and minute: count, sum, and the window."""
    orders = hf.read_kafka(
        spark,
        bootstrap_servers=servers,
        topics=[source],
        group_id="window-totals",
        start=hf.StartFrom.group_offsets(fallback="earliest"),
        options={"maxOffsetsPerTrigger": str(rows)},
    )
    parsed = orders.select(
        f.from_json(f.col("value").cast("string"), "id long, customer string, amount long, at timestamp").alias("order")
    ).select("order.*")
    minutes = parsed.withWatermark("at", "10 seconds").groupBy(f.window("at", "1 minute"), "customer")
    sums = minutes.agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
    return sums.selectExpr(
        "customer AS key",
        "to_json(struct(customer, string(window.start) AS minute, orders, amount)) AS value",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="bootstrap servers, host:port[,host:port]")
    parser.add_argument("--source", required=True, help="topic with orders")
    parser.add_argument("--target", required=True, help="topic for totals")
    parser.add_argument("--checkpoint", required=True, help="checkpoint location")
    parser.add_argument("--rows", type=int, default=10_000, help="orders in one checkpoint, at most")
    parser.add_argument("--once", action="store_true", help="end when all orders that are there now are done")
    options = parser.parse_args()
    spark = hf.session("window-totals", kafka=True, conf={"spark.sql.shuffle.partitions": "4"})
    writer = hf.write_stream(
        totals(spark, options.servers, options.source, options.rows),
        hf.KafkaSink(options.servers, options.target),
        name="window-totals",
        checkpoint_location=options.checkpoint,
    ).outputMode("append")
    trigger = {"availableNow": True} if options.once else {"processingTime": "5 seconds"}
    writer.trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    main()
