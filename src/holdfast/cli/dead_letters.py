"""`holdfast dead-letters`: what sinks refused and routes rejected, and sending it again."""

from __future__ import annotations

import json as jsons
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint import operator
from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.status import Status, read_status
from holdfast.checkpoint.storage import open_storage
from holdfast.cli.confirm import YesOption, ask, refuse_running
from holdfast.cli.output import OK, JsonOption, LocationArgument, reporting
from holdfast.errors import RecordError

if TYPE_CHECKING:
    from holdfast.sinks.letterbox import Choice, Letterbox

CheckpointOption = Annotated[int | None, typer.Option("--checkpoint", help="Only those of this checkpoint.")]
SinkOption = Annotated[str | None, typer.Option("--sink", help="Only those that this sink refused.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Only those with this text in their reason.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="How many to show.")]
CancelOption = Annotated[bool, typer.Option("--cancel", help="Take back what is ordered and not sent yet.")]
FenceOption = Annotated[
    bool,
    typer.Option("--fence", help="With --cancel, also when a driver seems to run: it is stopped, and loses nothing."),
]

_SENDING = "and may be sending these letters just now. Stop it first"

app = typer.Typer(
    help="What sinks refused and routes rejected, and sending it again.",
    epilog="Example: holdfast dead-letters list /data/checkpoints/orders",
    no_args_is_help=True,
)


def _command(name: str, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return app.command(name, epilog=f"Example: holdfast dead-letters {name} /data/checkpoints/orders{example}")


@_command("list", " --sink postgres-orders")
def list_(
    location: LocationArgument,
    checkpoint: CheckpointOption = None,
    sink: SinkOption = None,
    reason: ReasonOption = None,
    json: JsonOption = False,
) -> None:
    """Count the kept dead letters by checkpoint, sink and reason, and say which were sent again."""
    with reporting(json=json) as out:
        box, choice = _box(read_status(location)), _choice(checkpoint, sink, reason)
        found = box.summary(choice)
        total = sum(row["letters"] for row in found)
        out.result({"location": location, "letters": total, "by": found}, lambda: _table(found))
        out.exit(OK)


@_command("show", " --checkpoint 17")
def show(
    location: LocationArgument,
    checkpoint: CheckpointOption = None,
    sink: SinkOption = None,
    reason: ReasonOption = None,
    limit: LimitOption = 20,
    json: JsonOption = False,
) -> None:
    """Show dead letters with their rows, the oldest first."""
    with reporting(json=json) as out:
        box, choice = _box(read_status(location)), _choice(checkpoint, sink, reason)
        found: list[dict[str, Any]] = []
        more = False
        for letter in box.letters(choice):
            more = len(found) == limit
            if more:
                break
            found.append({**letter, "at": letter["at"].isoformat(), "content": jsons.loads(letter["content"])})
        out.result({"location": location, "letters": found, "more": more}, lambda: _rows(found, more))
        out.exit(OK)


@_command("replay", " --sink postgres-orders")
def replay(
    location: LocationArgument,
    checkpoint: CheckpointOption = None,
    sink: SinkOption = None,
    reason: ReasonOption = None,
    cancel: CancelOption = False,
    fence: FenceOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Send dead letters again, through the sink that refused them: with the first new checkpoint after the next start.

    Each is sent once, however often this is said; what is refused again is a new letter. Mend what refused them first.
    """
    with reporting(json=json) as out:
        found = read_status(location)
        box, choice = _box(found), _choice(checkpoint, sink, reason)
        if cancel:
            refuse_running(found, _SENDING, fence=fence)
            count = box.cancel() if box.open_orders() else 0
            out.result({"location": location, "cancelled": count}, lambda: Text(f"{count:,} letters wait again"))
            out.exit(OK)
        waiting = sum(row["waits"] for row in box.summary(choice))
        document: dict[str, Any] = {"location": location, "letters": waiting, "order": None}
        if not waiting:
            out.result(document, lambda: Text("no letter waits: nothing was ordered"))
            out.exit(OK)
        ask(out, f"{waiting:,} rows are sent again to the sinks that refused them", yes=yes)
        order = box.order(choice, operator.who())
        document |= {"letters": 0, "order": None} if order is None else {"letters": order.count, "order": order.number}
        out.result(document, lambda: _ordered(document["letters"]))
        out.exit(OK)


def _ordered(count: int) -> Text:
    return Text(f"{count:,} letters are ordered: start the query again, they are sent with its first new checkpoint")


def _box(found: Status) -> Letterbox:
    from holdfast.sinks.letterbox import Letterbox  # loads pyarrow

    if found.damaged or found.pipeline is None:
        raise RecordError("; ".join(d.problem for d in found.damaged) or f"{found.location} has no lineage record")
    return Letterbox(open_storage(log_location(found.location)), found.pipeline)


def _choice(checkpoint: int | None, sink: str | None, reason: str | None) -> Choice:
    from holdfast.sinks.letterbox import Choice

    return Choice(checkpoint, sink, reason)


def _table(rows: Sequence[dict[str, Any]]) -> RenderableType:
    if not rows:
        return Text("there are no dead letters")
    table = Table("checkpoint", "sink", "letters", "wait", "ordered", "sent again", "reason")
    for row in rows:
        counts = (f"{row[name]:,}" for name in ("letters", "waits", "ordered", "sent_again"))
        table.add_row(str(row["checkpoint_id"]), Text(row["sink"]), *counts, Text(row["reason"]))
    return table


def _rows(letters: Sequence[dict[str, Any]], more: bool) -> RenderableType:
    if not letters:
        return Text("there are no dead letters")
    table = Table(
        "letter", "sink", "column", "state", "reason", "row", caption="there are more: --limit" if more else None
    )
    for letter in letters:
        state = letter["state"] if letter["sent_by"] is None else f"{letter['state']} by {letter['sent_by']}"
        row = jsons.dumps(letter["content"], ensure_ascii=False)
        table.add_row(
            Text(str(letter.get("letter"))), Text(letter["sink"]), Text(letter["column"] or "-"), state,
            Text(letter["reason"]), Text(row),
        )  # fmt: skip
    return table
