"""`holdfast savepoint`: whole copies of a pipeline's checkpoint, and starting from one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint import journal
from holdfast.checkpoint import savepoint as savepoints
from holdfast.checkpoint.origin import Ahead
from holdfast.checkpoint.savepoint import Savepoint
from holdfast.checkpoint.savepoint_orders import savepoint as take
from holdfast.checkpoint.start_from import Beginning, start_from, told
from holdfast.cli.confirm import YesOption, ask
from holdfast.cli.output import JsonOption, LocationArgument, age, moment, reporting, size

app = typer.Typer(
    help="Make savepoints of a pipeline, and start pipelines from them.",
    epilog="Example: holdfast savepoint create /data/checkpoints/totals /data/savepoints --keep 5",
    no_args_is_help=True,
)
TargetArgument = Annotated[
    str, typer.Argument(help="The folder of savepoints: a path or a URL, as the driver sees it.", metavar="TARGET")
]
SavepointArgument = Annotated[str, typer.Argument(help="The folder of one savepoint.", metavar="SAVEPOINT")]
NewLocationArgument = Annotated[
    str, typer.Argument(help="The new checkpoint location: an empty path or URL.", metavar="NEW_LOCATION")
]
NameOption = Annotated[str | None, typer.Option("--name", help="The name of its folder; default: one with the time.")]
KeepOption = Annotated[
    int | None, typer.Option("--keep", min=1, help="Remove all but so many of this pipeline's savepoints afterwards.")
]
TimeoutOption = Annotated[str, typer.Option("--timeout", help="How long to wait for a running query.")]
StoppedOption = Annotated[
    bool, typer.Option("--stopped", help="There is no driver any more, although that cannot be seen from here.")
]
PipelineOption = Annotated[
    str | None, typer.Option("--name", help="The new pipeline's name; default: that of the savepoint.")
]
AheadOption = Annotated[
    Ahead,
    typer.Option(
        "--ahead",
        help="Where sinks have rows from later on: refuse; redeliver them, some then twice; or skip them, if the "
        "replay proves equal.",
    ),
]
VerifyOption = Annotated[bool, typer.Option("--verify", help="Read every file and compare its checksum.")]


@app.command(epilog="Example: holdfast savepoint create /data/checkpoints/totals s3://bucket/savepoints --keep 5")
def create(
    location: LocationArgument,
    target: TargetArgument,
    name: NameOption = None,
    keep: KeepOption = None,
    timeout: TimeoutOption = "10m",
    stopped: StoppedOption = False,
    json: JsonOption = False,
) -> None:
    """Make a savepoint: of a running query between two of its batches, of a stopped one at once."""
    with reporting(json=json) as out:
        found = take(location, target, name=name, keep=keep, timeout=timeout, stopped=stopped)
        journal.note(location, journal.SAVEPOINT, {"path": found.path, "checkpoint": found.checkpoint_id})
        out.result(_document(found), lambda: _shown(found))


@app.command("list", epilog="Example: holdfast savepoint list /data/savepoints")
def list_(target: TargetArgument, json: JsonOption = False) -> None:
    """List the savepoints of a folder, the oldest first."""
    with reporting(json=json) as out:
        found, halves = savepoints.list_savepoints(target), savepoints.halves(target)
        document = {"target": target, "savepoints": [_document(s) for s in found], "halves": halves}
        out.result(document, lambda: _table(found, halves))


@app.command(epilog="Example: holdfast savepoint show /data/savepoints/totals-17-20261117T100000-1f3a --verify")
def show(savepoint: SavepointArgument, verify: VerifyOption = False, json: JsonOption = False) -> None:
    """Show what a savepoint holds: checkpoint, offsets, sinks and their marks, files."""
    with reporting(json=json) as out:
        found = savepoints.read_savepoint(savepoint)
        if verify:
            savepoints.verify(found)
        document = {**_document(found), "verified": verify, "file_names": sorted(found.files)}
        out.result(document, lambda: _shown(found))


@app.command(
    "start-from",
    epilog="Example: holdfast savepoint start-from /data/savepoints/totals-17 /data/checkpoints/totals2 --name totals2",
)
def start_from_(
    savepoint: SavepointArgument,
    new_location: NewLocationArgument,
    name: PipelineOption = None,
    ahead: AheadOption = Ahead.REFUSE,
    json: JsonOption = False,
) -> None:
    """Make a checkpoint location from a savepoint; then start a query on it.

    It is a lineage of its own. Under the savepoint's name it goes on with the same sinks: where these have rows from
    later on, --ahead says what to do. Under a new name it is another pipeline, and its sinks get every row from there.
    """
    with reporting(json=json) as out:
        begun = start_from(savepoint, new_location, name=name, ahead=ahead)
        out.result(begun.to_json(), lambda: _begun(begun))


@app.command(epilog="Example: holdfast savepoint delete /data/savepoints/totals-17 --yes")
def delete(savepoint: SavepointArgument, yes: YesOption = False, json: JsonOption = False) -> None:
    """Delete a savepoint, or half of one that nobody is writing any more."""
    with reporting(json=json) as out:
        ask(out, f"{savepoint} is deleted", yes=yes)
        savepoints.delete_savepoint(savepoint)
        out.result({"deleted": savepoint}, lambda: Text(f"{savepoint} is deleted"))


def _document(found: Savepoint) -> dict[str, Any]:
    whole = asdict(found)
    return {k: v for k, v in whole.items() if k not in ("files", "decided")} | {
        "files": len(found.files),
        "bytes": found.bytes,
    }


def _shown(found: Savepoint) -> RenderableType:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in (
        ("savepoint", found.path),
        ("pipeline", found.pipeline),
        ("of", found.location),
        ("made", f"{moment(found.created)} ({age(found.created)} ago)"),
        ("checkpoint", str(found.checkpoint_id)),
        ("size", f"{len(found.files)} files, {size(found.bytes)}"),
        *((f"source {n}", str(position)) for n, position in enumerate(found.offsets)),
        *((f"sink {sink}", f"has all up to checkpoint {found.checkpoint_id}") for sink in found.sinks),
    ):
        table.add_row(Text(name, style="bold"), Text(value))
    return table


def _table(found: list[Savepoint], halves: list[str]) -> RenderableType:
    table = Table("savepoint", "pipeline", "checkpoint", "made", "size", "of")
    for one in found:
        table.add_row(
            Text(one.path),
            Text(one.pipeline),
            str(one.checkpoint_id),
            moment(one.created),
            size(one.bytes),
            Text(one.location),
        )
    return Group(table, *(Text(f"{path} is half of one: being written, or left by a kill") for path in halves))


def _begun(begun: Beginning) -> RenderableType:
    lines = [
        Text(
            f"{begun.location} goes on after checkpoint {begun.checkpoint_id}, as pipeline {begun.pipeline!r}: start it"
        ),
    ]
    if begun.further:
        what = "are left out, if the replay proves equal" if begun.ahead == Ahead.SKIP else "are delivered again"
        lines.append(Text(f"{told(begun.further, begun.checkpoint_id)}: they {what}"))
    if begun.unknown is not None:
        lines.append(Text(f"What sinks have got since is not known ({begun.unknown}): the start asks their ledgers"))
    return Group(*lines)
