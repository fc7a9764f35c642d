"""Kafka to Kafka and PostgreSQL, exactly once: clicks in, alerts out, from state and timers kept for each user.

Run it: python examples/session_alerts.py --servers localhost:9092 --source clicks --target alerts
--dsn postgresql://localhost/shop --table alerts --checkpoint /tmp/alerts

A click is a JSON value {"user": "ann", "page": "cart", "step": "order", "order": 7, "at": "2024-01-01T00:00:05Z"}; its
step is view, order or pay. Two kinds of alert are written, each once:
- session: a user has clicked nothing for --gap seconds, by the time in the clicks (an event-time timer)
- unpaid: an order is not paid --patience seconds after it was seen, by the clock on the wall (a processing-time timer)
Spark gives an operator one clock. So two operators read the clicks, and their alerts are one stream. Timers of the
second kind are looked at in every batch, also when no clicks come. Needs Spark 4.1 or newer, and the package protobuf.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor

import holdfast as hf

CLICK = "user string, page string, order long, step string, at timestamp"
ALERT = "kind string, user string, about string, clicks long, due timestamp"


def moment(milliseconds):
    """A timestamp, as Spark wants it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


class Sessions(StatefulProcessor):
    """Value state: the session; list state: its pages. The timer is always at its last click plus the gap."""

    def __init__(self, gap):
        """`gap` in seconds."""
        self.gap = gap * 1000

    def init(self, handle):
        """Declare the state."""
        self.handle = handle
        self.session = handle.getValueState("session", "first long, last long, clicks long")
        self.pages = handle.getListState("pages", "page string")

    def handleInputRows(self, key, rows, timerValues):
        """Lengthen the session; a click that comes too late for it ends it, as its timer would."""
        session = self.session.get() if self.session.exists() else None
        last = None if session is None else session[1]
        new = []
        for at, page in sorted((row.ms, row.page) for row in rows):
            if session is not None and at > session[1] + self.gap:
                yield self.alert(key, session, [*self.kept(), *new])
                self.pages.clear()
                session, new = None, []
            first, before, clicks = session or (at, at, 0)
            session = (first, max(before, at), clicks + 1)
            new.append(page)
        self.session.update(session)
        self.pages.appendList([(page,) for page in new])
        if last is not None:
            self.handle.deleteTimer(last + self.gap)
        self.handle.registerTimer(session[1] + self.gap)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        """Nothing has come: the session is over."""
        yield self.alert(key, self.session.get(), self.kept())
        self.session.clear()
        self.pages.clear()

    def kept(self):
        """The pages of earlier batches."""
        return [page for (page,) in self.pages.get()] if self.pages.exists() else []

    def alert(self, key, session, pages):
        """What is told of a session that is over."""
        first, last, clicks = session
        about = f"{moment(first):%H:%M:%S} {' '.join(sorted(set(pages)))}"
        return Row(kind="session", user=key[0], about=about, clicks=clicks, due=moment(last + self.gap))


class Unpaid(StatefulProcessor):
    """Map state: orders that wait for their payment, and payments that came before their order.

    A payment whose order never comes is forgotten after a while (TTL).
    """

    def __init__(self, patience, remember):
        """Both in seconds."""
        self.patience, self.remember = int(patience * 1000), remember * 1000

    def init(self, handle):
        """Declare the state."""
        self.handle = handle
        self.waiting = handle.getMapState("waiting", "order long", "due long")
        self.paid = handle.getMapState("paid", "order long", "at long", ttlDurationMs=self.remember)

    def handleInputRows(self, key, rows, timerValues):
        """Orders begin to wait, payments end it."""
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            order = (row.order,)
            if row.step == "pay" and self.waiting.containsKey(order):
                self.waiting.removeKey(order)  # its timer may be that of other orders, too, and finds nothing of it
            elif row.step == "pay":
                self.paid.updateValue(order, (row.ms,))
            elif row.step == "order" and self.paid.containsKey(order):
                self.paid.removeKey(order)
            elif row.step == "order":
                self.waiting.updateValue(order, (now + self.patience,))
                self.handle.registerTimer(now + self.patience)
        yield from ()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        """Whatever is due and still waits."""
        over = expiredTimerInfo.getExpiryTimeInMs()
        for (order,), (due,) in sorted(self.waiting.iterator()):
            if due <= over:
                self.waiting.removeKey((order,))
                yield Row(kind="unpaid", user=key[0], about=str(order), clicks=None, due=moment(due))


def alerts(clicks, gap, patience, remember=3600):
    """The alerts of a stream of clicks; all times in seconds."""
    known = clicks.withColumn("ms", f.unix_millis("at"))
    sessions = known.withWatermark("at", "10 seconds").groupBy("user")
    orders = known.where("step IN ('order', 'pay')").groupBy("user")
    return sessions.transformWithState(Sessions(gap), ALERT, "append", "eventTime").unionByName(
        orders.transformWithState(Unpaid(patience, remember), ALERT, "append", "processingTime")
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True, help="bootstrap servers, host:port[,host:port]")
    parser.add_argument("--source", required=True, help="topic with clicks")
    parser.add_argument("--target", required=True, help="topic for alerts")
    parser.add_argument("--dsn", required=True, help="PostgreSQL to write the alerts to, too")
    parser.add_argument("--table", default="alerts", help="its table; made if it is not there")
    parser.add_argument("--checkpoint", required=True, help="checkpoint location")
    parser.add_argument("--gap", type=int, default=60, help="seconds without a click that end a session")
    parser.add_argument("--patience", type=float, default=30, help="seconds to wait for a payment")
    parser.add_argument("--rows", type=int, default=10_000, help="clicks in one checkpoint, at most")
    options = parser.parse_args()
    spark = hf.session("session-alerts", kafka=True, state="rocksdb", conf={"spark.sql.session.timeZone": "UTC"})
    messages = hf.read_kafka(
        spark,
        bootstrap_servers=options.servers,
        topics=[options.source],
        group_id="session-alerts",
        start=hf.StartFrom.group_offsets(fallback="earliest"),
        options={"maxOffsetsPerTrigger": str(options.rows)},
    )
    clicks = messages.select(f.from_json(f.col("value").cast("string"), CLICK).alias("click")).select("click.*")
    query = hf.write_stream(
        alerts(clicks, options.gap, options.patience),
        [
            hf.KafkaSink(options.servers, options.target, key="user", value="to_json(struct(*))"),
            hf.PostgresSink(options.dsn, options.table, create=True),
        ],
        name="session-alerts",
        checkpoint_location=options.checkpoint,
    )
    query.outputMode("append").trigger(processingTime="1 second").start().awaitTermination()


if __name__ == "__main__":
    main()
