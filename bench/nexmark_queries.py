"""The queries of the Nexmark benchmark, in Spark's SQL and in Flink's, so that both mean exactly the same.

Where Nexmark's own texts leave it to the engine, they are made definite: money is in whole numbers, times are
milliseconds since 1970, each row has a time, and what an engine calls a session is spelled out. Rows with the same
fields come out of both as the same JSON, whatever its order and spaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from bench.nexmark_events import FLUSH, KINDS

_B, _S = "BIGINT", "STRING"
#: The fields of the three structs; the names of the types are the same in both.
FIELDS = {
    "person": {
        "id": _B, "name": _S, "emailAddress": _S, "creditCard": _S, "city": _S, "state": _S, "dateTime": _B,
        "extra": _S,
    },
    "auction": {
        "id": _B, "itemName": _S, "description": _S, "initialBid": _B, "reserve": _B, "dateTime": _B, "expires": _B,
        "seller": _B, "category": _B, "extra": _S,
    },
    "bid": {
        "auction": _B, "bidder": _B, "price": _B, "channel": _S, "url": _S, "dateTime": _B, "extra": _S,
    },
}  # fmt: skip
#: How late an event may be, in both.
LATE = "4 seconds"
_ROWTIME = "CASE event_type " + "".join(f"WHEN {n} THEN {k}.`dateTime` " for n, k in enumerate(KINDS)) + "END"
_ARROW = {_B: pa.int64(), _S: pa.string()}


@dataclass(frozen=True)
class Query:
    """One query; `spark` and `flink` read the views person, auction and bid."""

    what: str
    #: the output's columns and types
    columns: Mapping[str, str]
    #: the column with the time from which on a row can be known
    due: str
    spark: str
    flink: str
    #: one row for many events: then rows are counted one by one, since ends of transactions take offsets, too
    few: bool = False
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        made = pa.schema([(name, _ARROW[kind]) for name, kind in self.columns.items()])
        object.__setattr__(self, "schema", made)


def _both(text: str) -> dict[str, str]:
    """A text that both take."""
    return {"spark": text, "flink": text}


def _flink_ms(column: str) -> str:
    return f"(EXTRACT(EPOCH FROM {column}) * 1000 + EXTRACT(MILLISECOND FROM {column}))"


def _flink_windows(table: str) -> str:
    return f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))"


_SPARK_WINDOW = "window(rowtime, '10 seconds')"
#: What q21 looks for in an address; Spark's answer where there is nothing is an empty text, and Flink's is NULL.
_CHANNEL_ID = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"
_CHANNELS = "lower(channel) IN ('apple', 'google', 'facebook', 'baidu')"
_BID = {"auction": _B, "bidder": _B, "price": _B, "dateTime": _B, "extra": _S}

QUERIES = {
    "q0": Query(
        "every bid as it is", _BID, "dateTime", **_both("SELECT auction, bidder, price, `dateTime`, extra FROM bid")
    ),
    "q1": Query(
        "every bid in another currency",
        _BID,
        "dateTime",
        spark="SELECT auction, bidder, price * 908 DIV 1000 AS price, `dateTime`, extra FROM bid",
        flink="SELECT auction, bidder, price * 908 / 1000 AS price, `dateTime`, extra FROM bid",
    ),
    "q2": Query(
        "bids for some auctions",
        {"auction": _B, "price": _B, "dateTime": _B},
        "dateTime",
        **_both("SELECT auction, price, `dateTime` FROM bid WHERE MOD(auction, 123) = 0"),
        few=True,
    ),
    "q7": Query(
        "the highest bids of each 10 s",
        {"auction": _B, "bidder": _B, "price": _B, "dateTime": _B, "endtime": _B},
        "endtime",
        spark=f"""
SELECT b.auction, b.bidder, b.price, b.`dateTime`, unix_millis(b.w.end) AS endtime
FROM (SELECT *, {_SPARK_WINDOW} AS w FROM bid) b
JOIN (SELECT max(price) AS highest, {_SPARK_WINDOW} AS w FROM bid GROUP BY {_SPARK_WINDOW}) m
ON b.price = m.highest AND b.w = m.w""",
        flink=f"""
SELECT b.auction, b.bidder, b.price, b.`dateTime`, {_flink_ms("b.window_end")} AS endtime
FROM (SELECT * FROM {_flink_windows("bid")}) b
JOIN (
  SELECT MAX(price) AS highest, window_start, window_end FROM {_flink_windows("bid")} GROUP BY window_start, window_end
) m
ON b.price = m.highest AND b.window_start = m.window_start AND b.window_end = m.window_end""",
        few=True,
    ),
    "q8": Query(
        "new persons who sold in the same 10 s",
        {"id": _B, "name": _S, "endtime": _B},
        "endtime",
        spark=f"""
SELECT p.id, p.name, unix_millis(p.w.end) AS endtime
FROM (SELECT id, name, {_SPARK_WINDOW} AS w FROM person GROUP BY id, name, {_SPARK_WINDOW}) p
JOIN (SELECT seller, {_SPARK_WINDOW} AS w FROM auction GROUP BY seller, {_SPARK_WINDOW}) a
ON p.id = a.seller AND p.w = a.w""",
        flink=f"""
SELECT p.id, p.name, {_flink_ms("p.window_end")} AS endtime
FROM (
  SELECT id, name, window_start, window_end FROM {_flink_windows("person")} GROUP BY id, name, window_start, window_end
) p
JOIN (
  SELECT seller, window_start, window_end FROM {_flink_windows("auction")} GROUP BY seller, window_start, window_end
) a
ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
        few=True,
    ),
    # Bids of a session are less than 10 s apart. In Flink windows that touch are one, so its gap is a millisecond less.
    "q11": Query(
        "bids by bidder and session",
        {"bidder": _B, "bids": _B, "starttime": _B, "endtime": _B},
        "endtime",
        spark="""
SELECT bidder, count(*) AS bids, unix_millis(session_window.start) AS starttime,
  unix_millis(session_window.end) AS endtime
FROM bid GROUP BY bidder, session_window(rowtime, '10 seconds')""",
        flink=f"""
SELECT bidder, COUNT(*) AS bids, {_flink_ms("window_start")} AS starttime, {_flink_ms("window_end")} + 1 AS endtime
FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(rowtime), INTERVAL '9.999' SECOND))
GROUP BY bidder, window_start, window_end""",
        few=True,
    ),
    "q21": Query(
        "bids with the number of their channel",
        {"auction": _B, "bidder": _B, "price": _B, "channel": _S, "channel_id": _S, "dateTime": _B},
        "dateTime",
        **_both(f"""
SELECT auction, bidder, price, channel,
  CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
  ELSE {_CHANNEL_ID} END AS channel_id, `dateTime`
FROM bid WHERE {_CHANNEL_ID} IS NOT NULL OR {_CHANNELS}"""),
    ),
}


# -- the views that they read ---------------------------------------------------------------------------------------


def spark_schema() -> str:
    """Of an event, for from_json."""
    structs = (f"{kind} STRUCT<{_listed(kind, '`{}`: {}')}>" for kind in KINDS)
    return ", ".join(["event_type INT", *structs])


#: The columns of the stream that has the watermark, from the parsed event.
SPARK_EVENTS = ["event_type", *KINDS, f"timestamp_millis({_ROWTIME}) AS rowtime"]


def spark_view(kind: str) -> str:
    """Events of one kind. The last ones are left out by the column with the watermark: Spark would move a condition on
    any other below the watermark, which then never saw them."""
    where = f"event_type = {KINDS.index(kind)} AND rowtime < timestamp_millis({FLUSH})"
    return f"SELECT {kind}.*, rowtime FROM events WHERE {where}"


def flink_source() -> str:
    """The columns of the topic as a table."""
    rows = [f"{kind} ROW<{_listed(kind, '`{}` {}')}>" for kind in KINDS]
    late, unit = LATE.split()
    watermark = f"WATERMARK FOR rowtime AS rowtime - INTERVAL '{late}' {unit.rstrip('s').upper()}"
    return ", ".join(["event_type INT", *rows, f"rowtime AS TO_TIMESTAMP_LTZ({_ROWTIME}, 3)", watermark])


def flink_views() -> list[str]:
    """Events of each kind."""
    made = []
    for number, kind in enumerate(KINDS):
        columns = ", ".join(f"{kind}.`{name}` AS `{name}`" for name in FIELDS[kind])
        where = f"event_type = {number} AND rowtime < TO_TIMESTAMP_LTZ({FLUSH}, 3)"
        made.append(f"CREATE VIEW {kind} AS SELECT {columns}, rowtime FROM source WHERE {where};")
    return made


def flink_target(query: Query) -> str:
    """The columns of the output as a table."""
    return ", ".join(f"`{name}` {kind}" for name, kind in query.columns.items())


def _listed(kind: str, form: str) -> str:
    return ", ".join(form.format(name, of) for name, of in FIELDS[kind].items())
