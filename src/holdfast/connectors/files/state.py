"""What a file sink keeps in each decision record: which parts wait, and which files are to be made of which (T9).

A pure function of the state before and the parts that are new: whoever reads the record knows what to do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast.connectors.files import formats
from holdfast.connectors.files.rolling import Group, Part, Roll, Rolling, plan
from holdfast.errors import RecordError

KIND = "holdfast.files"
#: 2: parts say which format they were decided for
VERSION = 2


@dataclass(frozen=True)
class Names:
    """How this driver names what it plans: unique to lineage and sink, and hidden names carry the generation."""

    lineage: str
    sink: str
    generation: int

    def of(self, group: Group, number: int) -> str:
        """The target of a group: a file below the root, or a part below the sink's own folder."""
        if group.hidden:
            return f"parts/{self.lineage}/{self.generation}-merged-{number}.arrow"
        first, last = group.parts[0].first, max(part.last for part in group.parts)
        sink = hashlib.sha256(self.sink.encode()).hexdigest()[:8]
        suffix = formats.suffix(group.parts[0].format, group.parts[0].compression)
        file = f"{first}-{last}-{number}-{self.lineage}-{sink}{suffix}"
        return f"{group.parts[0].bucket}/{file}".lstrip("/")


@dataclass(frozen=True)
class PartsState:
    """The operator state of one file sink."""

    #: the newest checkpoint whose parts are in it
    checkpoint: int = -1
    #: the next roll's number
    next: int = 0
    waiting: tuple[Part, ...] = ()
    rolls: tuple[Roll, ...] = ()
    #: how large the last file was for the parts it was made of
    ratio: float = 1.0
    #: columns and types of all rows so far
    columns: tuple[tuple[str, str], ...] = ()

    @property
    def parts(self) -> list[Part]:
        """All parts in it."""
        return [part for parts in (self.waiting, *(roll.parts for roll in self.rolls)) for part in parts]

    @property
    def files(self) -> set[str]:
        """The hidden files of all parts in it."""
        return {part.file for part in self.parts}

    def unseen(self, done: int) -> int:
        """Rows that are decided and in no committed file, when rolls up to number `done` are done."""
        planned = [roll for roll in self.rolls if not roll.hidden and roll.number > done]
        return sum(part.rows for part in self.waiting) + sum(roll.rows for roll in planned)

    def advance(
        self,
        fresh: Iterable[Part],
        rolling: Rolling,
        names: Names,
        *,
        now: float,
        done: int,
        checkpoint: int | None = None,
        last: bool = False,
    ) -> PartsState:
        """The state after new parts came, with what is due planned; rolls up to number `done` are forgotten."""
        files, waiting = plan([*self.waiting, *fresh], rolling, now, last=last, ratio=self.ratio)
        number = self.next
        rolls = [roll for roll in self.rolls if roll.number > done]
        kept: list[Part] = []
        for group in files:
            rolls.append(Roll(number, names.of(group, number), group.parts, planned=self.next))
            number += 1
        for thing in waiting:
            if isinstance(thing, Part):
                kept.append(thing)
                continue
            roll = Roll(number, names.of(thing, number), thing.parts, hidden=True, planned=self.next)
            rolls.append(roll)
            kept.append(roll.merged())
            number += 1
        newest = self.checkpoint if checkpoint is None else checkpoint
        return replace(self, checkpoint=newest, next=number, waiting=tuple(kept), rolls=tuple(rolls))

    def learn(self, merged: Mapping[str, tuple[int, str | None]], ratio: float | None) -> PartsState:
        """With sizes and checksums of parts that were merged since, by file."""
        waiting = tuple(
            replace(part, bytes=merged[part.file][0], sha256=merged[part.file][1]) if part.file in merged else part
            for part in self.waiting
        )
        return replace(self, waiting=waiting, ratio=self.ratio if ratio is None else ratio)

    def needed(self, done: int, made: Collection[str] = ()) -> list[Part]:
        """The parts that must be there when rolls up to number `done` are, and the files `made` are there, too."""
        undone = [roll for roll in self.rolls if roll.number > done and roll.target not in made]
        planned = {roll.target for roll in undone}
        parts = [*self.waiting, *(part for roll in undone for part in roll.parts)]
        return [part for part in parts if part.file not in planned]

    def without(self, gone: Collection[str]) -> PartsState:
        """Without these parts, in what waits and in what is planned."""
        changed: dict[str, Part | None] = dict.fromkeys(gone)

        def left(parts: Iterable[Part]) -> tuple[Part, ...]:
            return tuple(p for p in (changed.get(part.file, part) for part in parts) if p is not None)

        rolls = []
        for roll in sorted(self.rolls, key=lambda roll: roll.number):
            parts = left(roll.parts)
            if parts != roll.parts and roll.hidden:
                changed[roll.target] = replace(roll, parts=parts).merged() if parts else None
            if parts:
                rolls.append(replace(roll, parts=parts))
        return replace(self, waiting=left(self.waiting), rolls=tuple(rolls))

    def to_json(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Plain data for the record; `options` make the sink again where only the record is at hand."""
        return {
            "kind": KIND,
            "version": VERSION,
            "options": dict(options),
            "checkpoint": self.checkpoint,
            "next": self.next,
            "ratio": self.ratio,
            "columns": [list(column) for column in self.columns],
            "waiting": [asdict(part) for part in self.waiting],
            "rolls": [
                {
                    "number": r.number,
                    "target": r.target,
                    "hidden": r.hidden,
                    "planned": r.planned,
                    "parts": [asdict(p) for p in r.parts],
                }
                for r in self.rolls
            ],
        }

    @classmethod
    def from_json(cls, data: Any, where: str) -> PartsState:
        """Read back from a record; None means that there is none yet."""
        if data is None:
            return cls()
        if not is_state(data) or data.get("version") not in (1, VERSION):
            raise RecordError(
                f"the operator state of {where} was written by another sink or by a newer holdfast: give the sink the "
                "name it had, or upgrade"
            )
        # Parts of the first version went into what the sink's options said then.
        options = {name: data["options"][name] for name in ("format", "compression")}

        def parts(found: Iterable[Mapping[str, Any]]) -> tuple[Part, ...]:
            return tuple(Part.from_json({**options, **part}) for part in found)

        return cls(
            checkpoint=data["checkpoint"],
            next=data["next"],
            waiting=parts(data["waiting"]),
            rolls=tuple(
                Roll(r["number"], r["target"], parts(r["parts"]), r["hidden"], r.get("planned", -1))
                for r in data["rolls"]
            ),
            ratio=data["ratio"],
            columns=tuple((name, kind) for name, kind in data["columns"]),
        )


def is_state(data: Any) -> bool:
    """Whether this operator state is one of ours."""
    return isinstance(data, dict) and data.get("kind") == KIND
