"""`holdfast rewind`: let a stopped pipeline start again from earlier on."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.checkpoint import rewind as rewinding
from holdfast.checkpoint.origin import Ahead
from holdfast.checkpoint.rewind import Rewind
from holdfast.checkpoint.start_from import told
from holdfast.cli.confirm import YesOption, ask
from holdfast.cli.output import JsonOption, LocationArgument, reporting
from holdfast.cli.savepoint import AheadOption
from holdfast.errors import ConfigError

ToOption = Annotated[
    int | None, typer.Option("--to", min=0, metavar="CHECKPOINT", help="The query goes on after this checkpoint.")
]
OffsetsOption = Annotated[
    str | None,
    typer.Option("--to-offsets", metavar="JSON", help='The next batch begins here: {"topic": {"0": 17}}; Kafka only.'),
]
LeaveOutOption = Annotated[
    bool, typer.Option("--leave-out", help="With --to-offsets: also past messages that are then never read.")
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]


def rewind(
    location: LocationArgument,
    to: ToOption = None,
    to_offsets: OffsetsOption = None,
    ahead: AheadOption = Ahead.REFUSE,
    leave_out: LeaveOutOption = False,
    dry_run: DryOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Let a stopped pipeline go on from an earlier checkpoint, or from other offsets of its Kafka source.

    State goes back with it. What is removed is kept in a backup below the location. Where sinks have rows from there
    on, --ahead says what happens to them. A rewind that was interrupted is finished first.
    """
    with reporting(json=json) as out:
        plan = rewinding.interrupted(location)
        if plan is None:
            plan = rewinding.plan_rewind(
                location, to=to, offsets=_offsets(to_offsets), ahead=ahead, leave_out=leave_out
            )
            if dry_run:
                out.result({**_document(plan), "dry_run": True}, lambda: _text(plan, done=False))
                return
            ask(out, _sentence(plan), yes=yes)
        elif dry_run:
            out.result({**_document(plan), "dry_run": True}, lambda: _text(plan, done=False))
            return
        done = rewinding.rewind(plan)
        out.result({**_document(done), "dry_run": False}, lambda: _text(done, done=True))


def _offsets(text: str | None) -> Mapping[str, Mapping[str, int]] | None:
    if text is None:
        return None
    try:
        found = json_module.loads(text)
    except ValueError as error:
        raise ConfigError(f"--to-offsets is not JSON: {error}") from error
    if not isinstance(found, dict) or not found or not all(isinstance(p, dict) and p for p in found.values()):
        raise ConfigError('--to-offsets must be {"topic": {"partition": offset}}, such as {"orders": {"0": 17}}')
    return found


def _document(plan: Rewind) -> dict[str, Any]:
    return {key: value for key, value in plan.to_json().items() if key != "writes"}


def _sentence(plan: Rewind) -> str:
    parts = [f"{plan.location} goes on after checkpoint {plan.checkpoint_id}"]
    if not plan.new_lineage:
        parts = [f"{plan.location} goes on after checkpoint {plan.checkpoint_id} from other offsets"]
    if plan.further:
        what = "left out, if the replay proves equal" if plan.ahead == Ahead.SKIP else "delivered again"
        parts.append(f"{told(plan.further, plan.checkpoint_id)}: these are {what}")
    if plan.left_out:
        parts.append(f"{plan.left_out:,} messages are never read")
    return "; ".join(parts)


def _text(plan: Rewind, *, done: bool) -> RenderableType:
    lines = [Text(_sentence(plan))]
    if done:
        lines.append(Text(f"{len(plan.removes)} files were removed; they are kept in {plan.location}/{plan.backup}"))
        lines.append(Text("Start the query: it goes on from there."))
    else:
        lines += [Text(f"would remove {name}") for name in plan.removes]
        lines += [Text(f"would write {name}") for name in plan.writes]
    return Group(*lines)
