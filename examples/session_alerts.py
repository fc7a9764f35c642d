"""Kafka to Kafka and PostgreSQL, exactly once: sessions of users, and a reminder some seconds after each.

Run it: python examples/session_alerts.py --servers localhost:9092 --source clicks --target alerts
--dsn postgresql://localhost/shop --checkpoint /tmp/alerts

A click is a JSON value {"user": "ann", "page": "/cart", "at": "2024-01-01T00:00:05Z"}. Two stateful operators, each
with timers of its own kind:

- `Sessions` collects the clicks of a user (value, list and map state). Thirty seconds of event time after the last
  click an event-time timer ends the session, and one alert of kind "session" comes out.
- `Reminders` passes sessions on, and remembers each for a while (list state with a time to live). Some seconds of
  processing time later a processing-time timer fires, and one alert of kind "reminder" comes out.

State and timers are in RocksDB, of which a checkpoint writes what has changed. Kill the program whenever you like and
start it again: each timer fires once, and each alert arrives once in the topic and once in the table.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor

import holdfast as hf

GAP_MS = 30_000
SESSION = "user string, started timestamp, ended timestamp, clicks long, pages string, favourite string"
ALERT = "kind string, user string, ended timestamp, clicks long, pages string, favourite string"
#: how long a session is remembered for its reminder, in milliseconds
REMEMBERED_MS = 3_600_000


def moment(milliseconds):
    """A point in time of a timer."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


class Sessions(StatefulProcessor):
    """The clicks of one user until an event-time timer ends the session."""

    def init(self, handle):
        """Make the state variables."""
        self._handle = handle
        self._span = handle.getValueState("span", "started long, last long")
        self._pages = handle.getListState("pages", "page string")
        self._counts = handle.getMapState("counts", "page string", "clicks long")

    def handleInputRows(self, key, rows, timerValues):
        """Collect the clicks, and let the session end GAP_MS after the last of them."""
        span = self._span.get() if self._span.exists() else None
        started, last = span if span is not None else (None, None)
        for row in rows:
            at = int(row.at.timestamp() * 1000)
            started, last = min(at, started or at), max(at, last or at)
            self._pages.appendValue((row.page,))
            known = self._counts.getValue((row.page,)) if self._counts.containsKey((row.page,)) else (0,)
            self._counts.updateValue((row.page,), (known[0] + 1,))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(last + GAP_MS)
        self._span.update((started, last))
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        """The session is over: tell of it, and forget it."""
        started, last = self._span.get()
        counts = {page: clicks for (page,), (clicks,) in self._counts.iterator()}
        pages = " ".join(sorted(page for (page,) in self._pages.get()))
        favourite = min(counts, key=lambda page: (-counts[page], page))
        self._span.clear()
        self._pages.clear()
        self._counts.clear()
        yield Row(
            user=key[0],
            started=moment(started),
            ended=moment(last),
            clicks=sum(counts.values()),
            pages=pages,
            favourite=favourite,
        )

    def close(self):
        """Nothing to close."""


class Reminders(StatefulProcessor):
    """Passes sessions on, and reminds of each some seconds of processing time later."""

    def __init__(self, delay_ms):
        self._delay_ms = delay_ms

    def init(self, handle):
        """Make the state variable; what nobody is reminded of goes by itself."""
        self._handle = handle
        self._session = handle.getListState(
            "session", "ended timestamp, clicks long, pages string, favourite string", REMEMBERED_MS
        )
        self._count = handle.getValueState("count", "sessions long")

    def handleInputRows(self, key, rows, timerValues):
        """One alert for each session now, and a timer for the one after it."""
        for row in rows:
            told = (row.ended, row.clicks, row.pages, row.favourite)
            known = self._count.get()[0] if self._count.exists() else 0
            self._count.update((known + 1,))
            self._session.appendValue(told)
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + self._delay_ms)
            yield _alert("session", key[0], told)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        """Remind of the sessions that wait; a later timer finds none of them any more."""
        waiting = list(self._session.get())
        self._session.clear()
        for told in waiting:
            yield _alert("reminder", key[0], told)

    def close(self):
        """Nothing to close."""


def _alert(kind, user, told):
    ended, clicks, pages, favourite = told
    return Row(kind=kind, user=user, ended=ended, clicks=clicks, pages=pages, favourite=favourite)


def alerts(spark, servers, source, rows, delay_ms):
    """One row for each session, and one for each reminder."""
    clicks = hf.read_kafka(
        spark,
        bootstrap_servers=servers,
        topics=[source],
        group_id="session-alerts",
        start=hf.StartFrom.group_offsets(fallback="earliest"),
        options={"maxOffsetsPerTrigger": str(rows)},
    )
    parsed = clicks.select(
        f.from_json(f.col("value").cast("string"), "user string, page string, at timestamp").alias("click")
    ).select("click.*")
    sessions = (
        parsed.withWatermark("at", "10 seconds")
        .groupBy("user")
        .transformWithState(Sessions(), SESSION, "append", "EventTime", eventTimeColumnName="ended")
    )
    return sessions.groupBy("user").transformWithState(Reminders(delay_ms), ALERT, "append", "ProcessingTime")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="bootstrap servers, host:port[,host:port]")
    parser.add_argument("--source", required=True, help="topic with clicks")
    parser.add_argument("--target", required=True, help="topic for alerts")
    parser.add_argument("--dsn", required=True, help="PostgreSQL, postgresql://...")
    parser.add_argument("--checkpoint", required=True, help="checkpoint location")
    parser.add_argument("--rows", type=int, default=10_000, help="clicks in one checkpoint, at most")
    parser.add_argument("--delay", type=float, default=60.0, help="seconds from a session to its reminder")
    options = parser.parse_args()
    spark = hf.session("session-alerts", kafka=True, state="rocksdb")
    hf.write_stream(
        alerts(spark, options.servers, options.source, options.rows, int(options.delay * 1000)),
        [
            hf.KafkaSink(options.servers, options.target, key="user", value="to_json(struct(*))"),
            hf.PostgresSink(options.dsn, "alerts"),
        ],
        name="session-alerts",
        checkpoint_location=options.checkpoint,
    ).outputMode("append").trigger(processingTime="1 second").start().awaitTermination()


if __name__ == "__main__":
    main()
