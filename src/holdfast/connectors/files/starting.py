"""What a file sink looks at when a query starts: that the folder is the one the log speaks of, and whole (rule 15)."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

import pyarrow as pa

from holdfast.checkpoint.ports import Run
from holdfast.connectors.files import formats
from holdfast.connectors.files.marks import ASIDE, LEDGER, Mark, move_aside, read_marks
from holdfast.connectors.files.parts import Folder
from holdfast.connectors.files.rolling import Part
from holdfast.connectors.files.state import PartsState
from holdfast.core.model import CheckpointId
from holdfast.errors import ConfigError, RestoredEndpointError
from holdfast.sinks.ledger import check_ledger, having
from holdfast.sinks.schema_change import DISCARD, FREEZE, discarded

logger = logging.getLogger("holdfast")


def committed_by(run: Run, sink: str) -> CheckpointId:
    """The newest checkpoint with rows that the log says this sink has committed, -1 for none."""
    known = run.committed.get(sink)
    return -1 if known is None else known.checkpoint_id


def check_change(sink: str, path: str, state: PartsState, schema: pa.Schema, change: str) -> tuple[str, ...]:
    """Files of one folder are read together: a column must keep its type. The new columns that are to be left out."""
    now = dict(formats.columns(formats.normal(schema)))
    for column, before in state.columns:
        if now.get(column, before) != before:
            raise ConfigError(
                f"sink {sink!r}: column {column!r} is {now[column]} now and was {before} in the files of {path}: "
                "readers cannot read both. Cast it back, or write into a new folder"
            )
    known = {column for column, _ in state.columns}
    new = [column for column in now if column not in known] if known else []
    if new and change == FREEZE:
        raise ConfigError(
            f"sink {sink!r}: column {', '.join(new)} is new, and the files of {path} have {', '.join(sorted(known))}: "
            "readers would have to join both kinds. Allow it (schema_change='evolve'), leave it out and count its "
            "values (schema_change='discard-column'), select other columns, or write into a new folder"
        )
    return discarded(sink, f"the files of {path}", new, ()) if change == DISCARD else ()


def missing_parts(folder: Folder, state: PartsState, done: int) -> list[Part]:
    """Parts that are needed and not there, when rolls up to number `done` are done."""
    needed = state.needed(done)
    there: set[str] = set()
    for place in {part.file.rpartition("/")[0] for part in needed}:
        there |= {f"{place}/{file}" for file in folder.storage.names(folder.hidden(place))}
    if all(part.file in there for part in needed):
        return []
    # A file that is there already needs no parts.
    made = {r.target for r in state.rolls if folder.exists(folder.hidden(r.target) if r.hidden else r.target)}
    return [part for part in state.needed(done, made) if part.file not in there]


def mark_there(folder: Folder, run: Run, sink: str, where: str, mark: Mark) -> Mark:
    """The mark that this run left, or a further one of another driver.

    A folder can become an older copy at any time, and a new mark would hide for ever what that lacks (rule 15).
    """
    if mark == Mark() or folder.exists(folder.hidden(mark.file(run.lineage))):
        return mark
    found = read_marks(folder).get(run.lineage, Mark())
    if found.join(mark) != found:
        # Of an older copy that has the checkpoint itself, files that were completed since are missing.
        ledger = {run.lineage: min(found.checkpoint, mark.checkpoint - 1)}
        check_ledger(having(run, sink, ledger, mark.checkpoint), where, ledger, sink=sink)
    return found


def restored(run: Run, sink: str, folder: Folder, gone: Collection[Part], last: CheckpointId) -> RestoredEndpointError:
    """The error for parts of committed checkpoints that are gone; `last` is the newest checkpoint committed."""
    first, rows = min(gone, key=lambda part: part.first), sum(part.rows for part in gone)
    location = run.location.removesuffix("/holdfast")
    return RestoredEndpointError(
        f"sink {sink!r}: {folder.url(folder.hidden(first.file))} is missing, and with it {rows} rows of checkpoints "
        f"{first.first} to {max(part.last for part in gone)} that were committed and waited there for their file. The "
        "folder was restored from an older copy, or somebody removed files below _holdfast. Bring them back from a "
        f"copy of the folder; or run `holdfast resolve {location} --sink {sink} --accept-restored`, which asks first: "
        "the pipeline goes on without these rows",
        behind=(first.first, last),
    )


def given_up(
    state: PartsState, mark: Mark, committed: CheckpointId, gone: Collection[Part], owed: Collection[str]
) -> set[str]:
    """Parts that nobody waits for any more: an operator gave up their checkpoint, or accepted that they are gone.

    Delivery is in order, so whatever is beyond the last committed checkpoint and not owed was given up. Where nothing
    was committed that cannot be told from a folder that was accepted as it is: then only what is gone is left out.
    """
    left_out = {part.file for part in gone}
    if committed >= 0:
        beyond = max(committed, mark.checkpoint)
        left_out |= {part.file for part in state.needed(mark.roll) if part.first > beyond}
    return left_out - set(owed)


def leave_out(sink: str, path: str, state: PartsState, files: Collection[str]) -> PartsState:
    """The state without these parts, which is told in the program's log."""
    if not files:
        return state
    kept = state.without(files)
    logger.warning(
        "sink %s: %d rows that were given up or are gone are left out of the files of %s",
        sink,
        state.unseen(-1) - kept.unseen(-1),
        path,
    )
    return kept


def after_take_over(sink: str, path: str, folder: Folder, state: PartsState) -> PartsState:
    """What a newer state of this location completed already is not here any more."""
    rolls = tuple(
        roll
        for roll in state.rolls
        if all(folder.exists(folder.hidden(part.file)) for part in roll.parts)
        or folder.exists(folder.hidden(roll.target) if roll.hidden else roll.target)
    )
    planned = {roll.target for roll in rolls}
    waiting = tuple(p for p in state.waiting if p.file in planned or folder.exists(folder.hidden(p.file)))
    kept = replace(state, waiting=waiting, rolls=rolls)
    lost = state.unseen(-1) - kept.unseen(-1)
    if lost:
        logger.warning(
            "sink %s: %d rows that waited in %s are not there any more; the location that was taken over from has "
            "completed them",
            sink,
            lost,
            path,
        )
    return kept


def set_others_aside(
    sink: str, folder: Folder, run: Run, keep: set[str], known: frozenset[str] | None
) -> frozenset[str]:
    """Undo what locations that were taken over from prepare here and do not commit, however late (rule 8).

    The first sweep of a take-over, with None for `known`, takes all that it finds for theirs and sets their marks
    aside. Who comes later, perhaps by a take-over of their own, is not touched. Returns the next sweep's `known`.
    """
    found = folder.lineages()
    others = {*run.set_aside, *(known or ())}
    taking = run.take_over and known is None
    if taking:
        others |= found | set(read_marks(folder))
    others.discard(run.lineage)
    if others & found:
        marks = read_marks(folder, LEDGER, ASIDE)
        left = folder.set_aside({other: marks.get(other, Mark()).checkpoint for other in others & found}, keep)
        if left and taking:
            logger.warning(
                "sink %s: %d hidden files below %s/parts hold rows that another checkpoint location had committed and "
                "not completed; they stay there, and nothing reads them any more",
                sink,
                left,
                folder.url(folder.home),
            )
    if taking:
        move_aside(folder, others)
    return frozenset(others)
