"""The commit of staged rows: all of a checkpoint into the table and its ledger row, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.ports import Run
from holdfast.connectors.postgres import trouble
from holdfast.connectors.postgres.deletes import change_statement, forget_statement
from holdfast.connectors.postgres.ledger import BEHIND, REFUSED, Ledger
from holdfast.connectors.postgres.legacy import drop, is_legacy
from holdfast.connectors.postgres.names import PART, ROW, TableName, literal, quote
from holdfast.connectors.postgres.server import drivers
from holdfast.connectors.postgres.staging import emptied, missing, parts_of, sources, sql_name
from holdfast.connectors.postgres.table import Deletes, Upsert, add_missing, insert_statement
from holdfast.core.model import CheckpointId, Outcome
from holdfast.errors import ConfigError, LostError

#: raised by the server when fewer rows are staged than were
LOST = "HF002"
#: What a committable of version 1 does not say: the table and what is replaced, as the options have it now.
Options = Callable[[], tuple[TableName, Upsert]]


def commit(
    ledger: Ledger,
    run: Run,
    options: Options,
    checkpoint_id: CheckpointId,
    committables: Sequence[Mapping[str, Any]],
    known: CheckpointId,
) -> Outcome:
    """Move the rows of all subtasks, add the ledger row and forget that they were staged; then make room."""
    psycopg, _, _ = drivers()
    ordered = sorted(committables, key=lambda c: (c["subtask"], c["table"], c.get("part", 0)))
    into = [_target(ledger.sink, checkpoint_id, c, options) for c in ordered]
    target = ", ".join(sorted({str(name) for name, _ in into}))
    moves = [move for group in _groups(ordered, into) for move in _moves(*group)]
    with ledger.server.connect(target) as connection:
        outcome = Outcome.COMMITTED
        try:
            connection.together(
                ledger.lock(run),
                ledger.refuse(run, checkpoint_id, known),
                ledger.add(run, checkpoint_id, sum(c["rows"] for c in ordered)),
                *_additions(ordered, into),
                *moves,
                ledger.prune(run, checkpoint_id),
            )
        except psycopg.Error as error:
            outcome = _judge(connection, ledger, run, target, checkpoint_id, ordered, known, error)
        emptied(connection, [c for c in ordered if not is_legacy(c)])
        old = [c for c in ordered if is_legacy(c)]
        for schema in {c["schema"] for c in old}:
            drop(connection, schema, [c["table"] for c in old if c["schema"] == schema])
    return outcome


def _additions(committables: Sequence[Mapping[str, Any]], into: Sequence[tuple[TableName, Upsert]]) -> Iterable[str]:
    """What adds the columns that these rows have and the table does not."""
    adding = [
        add_missing(target, column, kind)
        for committable, (target, _) in zip(committables, into, strict=True)
        for column, kind in committable.get("add", ())
    ]
    return dict.fromkeys(adding)


def _groups(
    committables: Sequence[Mapping[str, Any]], into: Sequence[tuple[TableName, Upsert]]
) -> list[tuple[TableName, Upsert, list[Mapping[str, Any]]]]:
    """What goes the same way, together; most often that is all of it."""
    found: dict[Any, tuple[TableName, Upsert, list[Mapping[str, Any]]]] = {}
    for committable, (target, upsert) in zip(committables, into, strict=True):
        way = (sql_name(committable), target, upsert, tuple(committable["columns"]))
        found.setdefault(way, (target, upsert, []))[2].append(committable)
    return list(found.values())


def _moves(target: TableName, upsert: Upsert, committables: list[Mapping[str, Any]]) -> list[str]:
    """The statements that move the rows of one group, and fail with LOST when some of these are not there."""
    ((source, _),) = sources(committables)
    columns = committables[0]["columns"]
    if is_legacy(committables[0]):
        return [insert_statement(target, columns, source, upsert, "ctid DESC")]
    parts, expected = parts_of(committables), sum(c["rows"] for c in committables)
    deletes = upsert.deletes
    insert = (insert_statement if deletes is None else change_statement)(
        target, columns, source, upsert, f"array_position({parts}, {quote(PART)}) DESC, {quote(ROW)} DESC"
    )
    if deletes is not None and deletes.table is not None:
        insert = f"{forget_statement(deletes.table, sum(c['deleted'] for c in committables))}; {insert}"
    count = f"SELECT count(*) INTO held FROM {source}"  # noqa: S608
    forget = f"DELETE FROM {quote(committables[0]['schema'])}.staged WHERE part = ANY ({parts})"  # noqa: S608
    lost = f"RAISE EXCEPTION 'staged rows are gone' USING ERRCODE = '{LOST}'"
    # What has no entry was undone. An upsert and triggers move other numbers of rows than are there: these are counted.
    body = (
        "#variable_conflict use_column\nDECLARE moved bigint; held bigint; BEGIN "
        f"{forget}; GET DIAGNOSTICS held = ROW_COUNT; IF held <> {len(committables)} THEN {lost}; END IF; "
        f"{insert}; GET DIAGNOSTICS moved = ROW_COUNT; IF moved <> {expected} THEN "
        f"{count}; IF held <> {expected} THEN {lost}; END IF; END IF; END"
    )
    return [f"DO {literal(body)}"]


def _target(
    sink: str, checkpoint_id: CheckpointId, committable: Mapping[str, Any], options: Options
) -> tuple[TableName, Upsert]:
    """Where rows go, as it was decided (rule 16)."""
    if committable["version"] >= 2:
        schema, table = committable["target"]
        deletes = Deletes.from_json(committable["deletes"]) if "deletes" in committable else None
        # Earlier versions did not say: they went by the column's collation.
        by_bytes = committable.get("by_bytes", False)
        return TableName(schema, table), Upsert(tuple(committable["key"]), committable["order_by"], deletes, by_bytes)
    target, upsert = options()
    if committable["target"] != str(target):
        raise ConfigError(
            f"sink {sink!r}: checkpoint {checkpoint_id} was decided for table {committable['target']} by an older "
            f"version of holdfast and is not there yet: start once more with that table, let it catch up, then change "
            f"it to {target}"
        )
    return target, upsert


def _judge(
    connection: Any,
    ledger: Ledger,
    run: Run,
    target: str,
    checkpoint_id: CheckpointId,
    committables: Sequence[Mapping[str, Any]],
    known: CheckpointId,
    error: Any,
) -> Outcome:
    """What a failed move means: done before, lost, the rows' fault, the table's, or worth another try."""
    if error.sqlstate in (REFUSED, BEHIND):
        outcome = ledger.judge(connection, run, checkpoint_id, known)
        if outcome is not None:
            return outcome
    found = trouble.read(error)
    where = f"sink {ledger.sink!r} ({ledger.server})"
    if found.state in ("42P01", LOST):
        lost = missing(connection, committables)
        if lost:
            raise LostError(
                f"{where}: the staged rows of {len(lost)} of {len(committables)} subtasks of checkpoint "
                f"{checkpoint_id} ({sum(c['rows'] for c in lost)} rows, subtasks "
                f"{', '.join(str(c['subtask']) for c in lost)}) are gone before they were committed: somebody deleted "
                "them, or the database was restored from a backup",
                lost,
            ) from error
    staged = ", ".join(sorted({sql_name(c) for c in committables}))
    told = trouble.after_decision(where, target, checkpoint_id, found, staged)
    if told is None:
        raise error
    raise told from error
