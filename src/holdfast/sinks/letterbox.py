"""Kept dead letters, read for people: which there are, what they say, which of them are ordered to be sent again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.dead import FOLDER, KEPT_BY, Order, finish_order, give_order, kept_files, read_orders
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.runs import note_command
from holdfast.checkpoint.storage import Storage
from holdfast.core.model import CheckpointId
from holdfast.sinks.dead_letters import read_kept
from holdfast.sinks.letters import SCHEMA

WAITS, ORDERED, SENT = "waits", "ordered", "sent again"


@dataclass(frozen=True)
class Choice:
    """Which letters are meant; None: whatever it is."""

    checkpoint_id: CheckpointId | None = None
    sink: str | None = None
    #: a part of the reason
    reason: str | None = None

    def takes(self, letter: Mapping[str, Any]) -> bool:
        """Whether this is one of them."""
        return (
            self.sink in (None, letter["sink"])
            and self.checkpoint_id in (None, letter["checkpoint_id"])
            and (self.reason is None or self.reason in letter["reason"])
        )


class Letterbox:
    """The letters of one checkpoint location."""

    def __init__(self, storage: Storage, pipeline: str) -> None:
        self._storage, self._pipeline = storage, pipeline

    def letters(self, choice: Choice) -> Iterator[dict[str, Any]]:
        """Every letter that is meant, in order, with `state`, `file` and `number`."""
        where = self._states(self.orders())
        for checkpoint_id, file in kept_files(self._storage):
            if choice.checkpoint_id not in (None, checkpoint_id):
                continue
            number = 0
            for batch in read_kept(self._storage, f"{FOLDER}/{file}"):
                known = [name for name in SCHEMA.names if name in batch.schema.names]  # none has fewer by now
                for letter in batch.select(known).to_pylist():
                    if choice.takes(letter):
                        state = where.get((file, number), (WAITS, None))
                        yield {**letter, "state": state[0], "sent_by": state[1], "file": file, "number": number}
                    number += 1

    def summary(self, choice: Choice) -> list[dict[str, Any]]:
        """How many there are, by checkpoint, sink and reason."""
        counts: dict[tuple[int, str, str], Counter[str]] = {}
        for letter in self.letters(choice):
            key = (letter["checkpoint_id"], letter["sink"], letter["reason"])
            counts.setdefault(key, Counter())[letter["state"]] += 1
        return [
            {"checkpoint_id": number, "sink": sink, "reason": reason, "letters": sum(by.values()), **_by_state(by)}
            for (number, sink, reason), by in sorted(counts.items())
        ]

    def orders(self) -> list[Order]:
        """Every order; what the newest decision says of one counts before it is noted."""
        log = CheckpointLog(self._storage, self._pipeline)
        log.load()
        state = {} if log.last_decided is None else log.facts.decided[log.last_decided].state.get(KEPT_BY) or {}
        done = {int(number): by for number, by in state.get("replayed", {}).items()}
        return [
            Order(o.number, o.letters, o.who, done[o.number]) if o.number in done else o
            for o in read_orders(self._storage)
        ]

    def order(self, choice: Choice, who: Mapping[str, Any]) -> Order | None:
        """Order that all letters which wait, of those that are meant, are sent again; None when none waits."""
        while True:
            number = len(self.orders())
            chosen: dict[str, dict[str, list[int]]] = {}
            for letter in self.letters(choice):
                if letter["state"] == WAITS:
                    chosen.setdefault(letter["sink"], {}).setdefault(letter["file"], []).append(letter["number"])
            if not chosen:
                return None
            order = Order(number, chosen, who)
            if give_order(self._storage, order):
                return order

    def open_orders(self) -> list[Order]:
        """Those that no checkpoint has carried out."""
        return [order for order in self.orders() if order.done is None and not order.cancelled]

    def cancel(self) -> int:
        """Take back every order that is not carried out; how many letters wait again.

        Claims a generation: a driver that runs could be carrying one out just now, and after the fence it cannot.
        """
        log = CheckpointLog(self._storage, self._pipeline)
        log.start()
        note_command(self._storage, log.generation, "dead-letters")
        return sum(order.count for order in self.open_orders() if finish_order(self._storage, order.number, None))

    @staticmethod
    def _states(orders: list[Order]) -> dict[tuple[str, int], tuple[str, CheckpointId | None]]:
        return {
            (file, number): (ORDERED if order.done is None else SENT, order.done)
            for order in orders
            if not order.cancelled
            for files in order.letters.values()
            for file, numbers in files.items()
            for number in numbers
        }


def _by_state(counts: Counter[str]) -> dict[str, int]:
    return {state.replace(" ", "_"): counts[state] for state in (WAITS, ORDERED, SENT)}
