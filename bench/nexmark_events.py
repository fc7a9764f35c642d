"""The events of the Nexmark benchmark as JSON, from a seed: of each 50 one person, three auctions and 46 bids.

Event n is at `BASE` + n * 1000 / rate milliseconds, its ids follow from n, and the rest from the seed. The topic is
filled in turns by partition, in the order of events, so that partitions hardly differ in time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.kafka_topics import PARTITIONS

GROUP, PERSONS, AUCTIONS = 50, 1, 3
BIDS = GROUP - PERSONS - AUCTIONS
PERSON, AUCTION, BID = KINDS = ("person", "auction", "bid")
FIRST_ID = 1000
#: 2020-07-15, where a window of ten seconds begins.
BASE = 1_594_771_200_000
#: The time of the last events of each partition, after which Spark, too, knows that every window is over. No query
#: has them in its output.
FLUSH = BASE + 100_000_000_000
#: Bytes of an event's values, on average: numbers count 8.
SIZES = {PERSON: 200, AUCTION: 500, BID: 100}
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
#: How many of the newest auctions and persons those that are not hot are taken from; every so many there is a hot one.
RECENT_AUCTIONS, RECENT_PERSONS, HOT_EVERY = 100, 1000, 100
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent")
#: A multiple of what a group has, and of the partitions.
_CHUNK = 10_000
Numbers = npt.NDArray[np.int64]


def check(events: int) -> int:
    """So many events, if every partition gets as many; then Spark reads all of them to their ends in the same batch."""
    step = GROUP * PARTITIONS
    if events <= 0 or events % step:
        raise ValueError(f"events must be a multiple of {step}, not {events}")
    return events


def batches(events: int, rate: int, seed: int = 0) -> Iterator[pa.RecordBatch]:
    """All events as (value, partition), and at the end those that close the windows."""
    random = np.random.default_rng(seed)
    for start in range(0, check(events), _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, events))
        yield pa.record_batch({"value": _values(random, numbers, rate), "partition": pa.array(numbers % PARTITIONS)})
    ends = [(value, n) for n in range(PARTITIONS) for value in _ends(random)]
    yield pa.record_batch({"value": pa.array([v for v, _ in ends]), "partition": pa.array([n for _, n in ends])})


def _values(random: np.random.Generator, numbers: Numbers, rate: int) -> pa.Array:
    """JSON in the order of events: made kind by kind, and then put in order."""
    place = numbers % GROUP
    kinds = np.where(place < PERSONS, 0, np.where(place < PERSONS + AUCTIONS, 1, 2))
    at = BASE + numbers * 1000 // rate
    made = [make(random, numbers[kinds == kind], at[kinds == kind]) for kind, make in enumerate(_MAKERS)]
    order = np.empty(len(numbers), np.int64)
    order[np.argsort(kinds, kind="stable")] = np.arange(len(numbers))
    return pa.concat_arrays(made).take(pa.array(order))


def _ends(random: np.random.Generator) -> list[str]:
    """One event of each kind, far in the future: each query reads one kind and no other."""
    last = np.array([0]), np.array([FLUSH])
    return [value for make in _MAKERS for value in make(random, *last).to_pylist()]


# -- the three kinds ------------------------------------------------------------------------------------------------


def _persons(random: np.random.Generator, numbers: Numbers, at: Numbers) -> pa.Array:
    count = len(numbers)
    names, mails = _letters(random, np.full(count, 12)), _letters(random, np.full(count, 14))
    card = _text(random.integers(10**15, 10**16, count))
    cities, states = _one_of(random, _CITIES, count), _one_of(random, _STATES, count)
    fields = {
        "id": FIRST_ID + numbers // GROUP,
        "name": names,
        "emailAddress": pc.binary_join_element_wise(mails, "@example.com", ""),
        "creditCard": card,
        "city": cities,
        "state": states,
        "dateTime": at,
    }
    return _json(random, PERSON, fields)


def _auctions(random: np.random.Generator, numbers: Numbers, at: Numbers) -> pa.Array:
    count, last = len(numbers), numbers // GROUP
    initial = _prices(random, count)
    fields = {
        "id": FIRST_ID + AUCTIONS * last + numbers % GROUP - PERSONS,
        "itemName": _letters(random, np.full(count, 20)),
        "description": _letters(random, np.full(count, 100)),
        "initialBid": initial,
        "reserve": initial + _prices(random, count),
        "dateTime": at,
        "expires": at + random.integers(1000, 20_000, count),
        "seller": FIRST_ID + _hot_or_recent(random, last, 3 / 4, RECENT_PERSONS),
        "category": random.integers(10, 15, count),
    }
    return _json(random, AUCTION, fields)


def _bids(random: np.random.Generator, numbers: Numbers, at: Numbers) -> pa.Array:
    count, last = len(numbers), numbers // GROUP
    number = random.integers(0, 10_000, count)
    hot = random.random(count) < 1 / 2
    channel = pc.if_else(
        pa.array(hot),
        _one_of(random, HOT_CHANNELS, count),
        pc.binary_join_element_wise("channel", _text(number), "-"),
    )
    # Most channels have a number in the address; a bid of a channel without one is none of q21's.
    tail = pc.binary_join_element_wise("&channel_id=", _text(number * 7919 % 1_000_003), "")
    told = pa.array(~hot & (random.random(count) < 9 / 10))
    path = _letters(random, np.full(count, 12))
    url = pc.binary_join_element_wise("https://nexmark.example/", path, "/item.htm?query=1", "")
    newest_auction = AUCTIONS * last + AUCTIONS - 1
    fields = {
        "auction": FIRST_ID + _hot_or_recent(random, newest_auction, 1 / 2, RECENT_AUCTIONS),
        # One after the hot seller, who does not bid.
        "bidder": FIRST_ID + _hot_or_recent(random, last, 3 / 4, RECENT_PERSONS, hot=1),
        "price": _prices(random, count),
        "channel": channel,
        "url": pc.if_else(told, pc.binary_join_element_wise(url, tail, ""), url),
        "dateTime": at,
    }
    return _json(random, BID, fields)


_MAKERS = (_persons, _auctions, _bids)


# -- columns --------------------------------------------------------------------------------------------------------


def _hot_or_recent(random: np.random.Generator, newest: Numbers, chance: float, recent: int, hot: int = 0) -> Numbers:
    """The newest hot one so often, else one of the newest; from 0."""
    others = np.maximum(newest - random.integers(0, recent, len(newest)), 0)
    popular = newest // HOT_EVERY * HOT_EVERY + hot
    # The first after a hot one may not be there yet.
    popular = np.where(popular > newest, newest, popular)
    return np.where(random.random(len(newest)) < chance, popular, others)


def _prices(random: np.random.Generator, count: int) -> Numbers:
    return np.round(10.0 ** (random.random(count) * 6) * 100).astype(np.int64)


def _one_of(random: np.random.Generator, choices: tuple[str, ...], count: int) -> pa.Array:
    return pa.array(choices).take(pa.array(random.integers(0, len(choices), count)))


def _text(numbers: Numbers) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _letters(random: np.random.Generator, lengths: Numbers) -> pa.Array:
    """Small letters, so many in each row."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = random.integers(ord("a"), ord("z") + 1, int(offsets[-1]), "u1")
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(data))


def _json(random: np.random.Generator, kind: str, fields: dict[str, Numbers | pa.Array]) -> pa.Array:
    """The events, with a field `extra` that fills them up to their size, a fifth more or less."""
    count = len(fields["dateTime"])
    texts = [column for column in fields.values() if isinstance(column, pa.Array)]
    used = 8 * (len(fields) - len(texts)) + sum(pc.binary_length(text).to_numpy() for text in texts)
    room = np.maximum(SIZES[kind] - used, 0)
    extra = _letters(random, np.floor(room * random.uniform(0.8, 1.2, count)).astype(np.int64))
    parts: list[str | pa.Array] = [f'{{"event_type":{KINDS.index(kind)},"{kind}":{{']
    for name, column in {**fields, "extra": extra}.items():
        comma = "" if len(parts) == 1 else ","
        if isinstance(column, pa.Array):
            parts += [f'{comma}"{name}":"', column, '"']
        else:
            parts += [f'{comma}"{name}":', _text(column)]
    return pc.binary_join_element_wise(*parts, "}}", "")
