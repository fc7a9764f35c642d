"""`holdfast state`: what a stopped query keeps by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint.history import engine_position
from holdfast.checkpoint.status import read_status
from holdfast.cli.output import JsonOption, LocationArgument, reporting, size
from holdfast.errors import CheckpointInUseError

if TYPE_CHECKING:
    from holdfast.spark.state import Operator

SampleOption = Annotated[int, typer.Option("--sample", min=0, help="Show so many keys and values of each.")]


def state(location: LocationArgument, sample: SampleOption = 5, json: JsonOption = False) -> None:
    """Show the keyed state of a stopped query: operators, partitions, sizes, timers that wait, some keys and values.

    Starts Spark, whose own state reader reads it, as of the last batch that Spark has committed.
    """
    with reporting(json=json) as out:
        found = read_status(location)
        if found.owner is not None and found.owner.alive:
            raise CheckpointInUseError(
                f"the pipeline {found.pipeline!r} runs in process {found.owner.pid} on {found.owner.host}, and its "
                "state changes while it is read: stop it first"
            )
        from holdfast.spark.session import session
        from holdfast.spark.state import read_state

        operators = read_state(session("holdfast-state"), location, sample=sample)
        committed = engine_position(location)[1]
        document = {"location": location, "checkpoint_id": committed, "operators": [asdict(o) for o in operators]}
        out.result(document, lambda: _shown(operators, committed))


def _shown(operators: Sequence[Operator], committed: int | None) -> RenderableType:
    if not operators:
        return Text("the query keeps no state")
    parts: list[RenderableType] = [Text(f"after checkpoint {committed}")]
    for one in operators:
        parts.append(Text(f"operator {one.operator_id}: {one.name}, {one.partitions} partitions, {size(one.bytes)}"))
        table = Table("name", "kind", "rows", "by partition")
        for part in one.parts:
            by = ", ".join(f"{n}: {count:,}" for n, count in part.partitions.items())
            table.add_row(Text(part.name), part.kind, f"{part.rows:,}", by or "-")
        parts.append(table)
        for part in one.parts:
            parts += [Text(f"  {part.name}: {dict(row)}") for row in part.sample]
    return Group(*parts)
