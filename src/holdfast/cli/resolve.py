"""`holdfast resolve`: the operator's way out of a checkpoint that cannot be committed or repaired."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint import resolve as orders
from holdfast.checkpoint.repair import GIVE_UP, MARK_DELIVERED, PRODUCE_ANYWAY
from holdfast.checkpoint.resolve import Finding
from holdfast.checkpoint.status import LogReader, Owner, Status, read_status
from holdfast.cli.confirm import YesOption, confirm
from holdfast.cli.output import BROKEN, OK, JsonOption, LocationArgument, age, moment, reporting
from holdfast.errors import CheckpointInUseError, ConfigError, RecordError

CheckpointArgument = Annotated[
    int | None, typer.Argument(help="Which checkpoint; default: the only one that is stuck.", metavar="[CHECKPOINT]")
]
SinkOption = Annotated[str | None, typer.Option("--sink", help="Which sink, if more than one lost this checkpoint.")]
ProduceOption = Annotated[
    bool, typer.Option("--produce-anyway", help="Produce what Spark's replay gives: rows may be doubled or missing.")
]
GiveUpOption = Annotated[bool, typer.Option("--give-up", help="Go on without the lost rows.")]
DeliveredOption = Annotated[
    bool,
    typer.Option("--mark-delivered", help="The lost rows are at the endpoint: you have looked, or put them there."),
]
FenceOption = Annotated[
    bool, typer.Option("--fence", help="Also when a driver seems to run: it is stopped, and loses nothing.")
]


def resolve(
    location: LocationArgument,
    checkpoint: CheckpointArgument = None,
    sink: SinkOption = None,
    produce_anyway: ProduceOption = False,
    give_up: GiveUpOption = False,
    mark_delivered: DeliveredOption = False,
    yes: YesOption = False,
    fence: FenceOption = False,
    json: JsonOption = False,
) -> None:
    """Decide about a checkpoint whose rows an endpoint lost and no replay could bring back.

    Without one of the three choices it shows what is stuck and what each choice means, changes nothing, and exits with
    code 1 when something is. With one it asks first, records the order in the log, and leaves a report of what is known
    lost or doubled; the next start of the query carries it out.
    """
    with reporting(json=json) as out:
        found = read_status(location)
        if found.damaged or found.pipeline is None:
            raise RecordError("; ".join(d.problem for d in found.damaged) or f"{location} has no lineage record")
        ways = {PRODUCE_ANYWAY: produce_anyway, GIVE_UP: give_up, MARK_DELIVERED: mark_delivered}
        chosen = [how for how, wanted in ways.items() if wanted]
        if not chosen:
            out.result(_document(found), lambda: _text(found))
            out.exit(BROKEN if found.stuck else OK)
        if len(chosen) > 1:
            raise ConfigError(f"choose one: {', '.join(f'--{how}' for how in chosen)}")
        how = chosen[0]
        log = LogReader(location)
        log.load()
        orders.finish(log)
        finding = orders.choose(log, checkpoint, sink)
        orders.check_way(location, finding, how)
        if not fence:
            _refuse_running(found)
        question = orders.consequence(finding, how)
        if not confirm(f"{question}{_elsewhere(found.owner)}", yes=yes):
            out.error("not confirmed: nothing was changed")
            out.exit(BROKEN)
        who = {"by": _user(), "host": socket.gethostname(), "at": int(time.time() * 1000)}
        report = orders.resolve(location, found.pipeline, finding, how, who)
        out.result({"location": location, "report": report}, lambda: _report(report))


def _document(found: Status) -> dict[str, Any]:
    stuck = [{**asdict(f), "ways": {how: orders.consequence(f, how) for how in orders.WAYS}} for f in found.stuck]
    return {"location": found.location, "stuck": stuck, "resolutions": list(found.resolutions)}


def _text(found: Status) -> RenderableType:
    if not found.stuck:
        return Text("nothing is stuck")
    return Group(*[part for f in found.stuck for part in _shown(f, found.location)])


def _shown(f: Finding, location: str) -> list[RenderableType]:
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    replay = "none" if f.replay_rows is None else f"{f.replay_rows:,} rows in {f.replay_subtasks} subtasks; it differs"
    for name, value in (
        ("checkpoint", str(f.checkpoint_id)),
        ("sink", f.sink),
        ("lost" if f.certain else "may be lost", f"{f.rows:,} rows of subtasks {', '.join(map(str, f.subtasks))}"),
        ("since", f"{moment(f.since)} ({age(f.since)} ago)"),
        ("replay", replay),
        ("problem", f.problem),
    ):
        facts.add_row(Text(name, style="bold"), Text(value))
    command = f"holdfast resolve {location} {f.checkpoint_id} --sink {f.sink}"
    ways = [Text(f"{command} --{how}\n    {orders.consequence(f, how)}") for how in orders.WAYS]
    return [facts, Text("Ways out, each of which asks first:"), *ways]


def _report(report: Mapping[str, Any]) -> RenderableType:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name in ("checkpoint_id", "sink", "how", "by", "host", "rows", "subtasks"):
        table.add_row(Text(name, style="bold"), Text(str(report[name])))
    for name, count in report["expected"].items():
        table.add_row(Text(name, style="bold"), Text(f"{count:,}"))
    last = "Start the query: it goes on from there."
    if not report["carried_out"]:
        last = "Start the query: it carries this out and leaves its own report (holdfast status). Numbers are expected."
    return Group(table, Text(last))


def _refuse_running(found: Status) -> None:
    owner = found.owner
    # Our own number is that of a driver that is gone: in containers the first process often has the same.
    if owner is None or not owner.alive or owner.pid == os.getpid():
        return
    raise CheckpointInUseError(
        f"the pipeline {found.pipeline!r} seems to run in process {owner.pid} on this host. Stop it first, so that "
        "nothing changes under your decision; or pass --fence: that process is then stopped at its next checkpoint"
    )


def _elsewhere(owner: Owner | None) -> str:
    if owner is None or owner.alive is not None:
        return ""
    return f". The last driver ran as process {owner.pid} on {owner.host}: if it still runs, it is stopped"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without a name
        return f"uid {os.getuid()}"
