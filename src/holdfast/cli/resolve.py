"""`holdfast resolve`: the operator's way out of a checkpoint that cannot be committed or repaired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint import operator, orders
from holdfast.checkpoint import resolve as ways_out
from holdfast.checkpoint.log import ACCEPT_RESTORED
from holdfast.checkpoint.reader import LogReader
from holdfast.checkpoint.reports import GIVE_UP, MARK_DELIVERED, PRODUCE_ANYWAY
from holdfast.checkpoint.resolve import TRY_AGAIN
from holdfast.checkpoint.status import Status, read_status
from holdfast.checkpoint.stuck import Finding, choose
from holdfast.cli import reports
from holdfast.cli.confirm import YesOption, ask
from holdfast.cli.output import BROKEN, OK, JsonOption, LocationArgument, Output, age, moment, reporting
from holdfast.errors import ConfigError, RecordError

CheckpointArgument = Annotated[
    int | None, typer.Argument(help="Which checkpoint; default: the only one that is stuck.", metavar="[CHECKPOINT]")
]
SinkOption = Annotated[
    str | None, typer.Option("--sink", help="Which sink; without a checkpoint: everything that this sink owes.")
]
TryOption = Annotated[bool, typer.Option("--try-again", help="Forget why it failed; the next start tries again.")]
ProduceOption = Annotated[
    bool, typer.Option("--produce-anyway", help="Produce what Spark's replay gives: rows may be doubled or missing.")
]
GiveUpOption = Annotated[bool, typer.Option("--give-up", help="Go on without these rows; they are kept in a report.")]
DeliveredOption = Annotated[
    bool,
    typer.Option("--mark-delivered", help="The rows are at the endpoint: you have looked, or put them there."),
]
AcceptOption = Annotated[
    bool,
    typer.Option("--accept-restored", help="Take a restored endpoint as it is: what it lacks is not asked for."),
]
ReportsOption = Annotated[bool, typer.Option("--reports", help="List what was decided so far, and the rows kept.")]
RowsOption = Annotated[
    int | None, typer.Option("--rows", metavar="CHECKPOINT", help="Print the kept rows of a checkpoint.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="With --rows: into this file, as JSON lines or, if it ends so, as .arrow.")
]
SendOption = Annotated[
    int | None, typer.Option("--send-again", metavar="CHECKPOINT", help="Send the kept rows of a checkpoint again.")
]
FenceOption = Annotated[
    bool, typer.Option("--fence", help="Also when a driver seems to run: it is stopped, and loses nothing.")
]


def resolve(
    location: LocationArgument,
    checkpoint: CheckpointArgument = None,
    sink: SinkOption = None,
    try_again: TryOption = False,
    produce_anyway: ProduceOption = False,
    give_up: GiveUpOption = False,
    mark_delivered: DeliveredOption = False,
    accept_restored: AcceptOption = False,
    list_reports: ReportsOption = False,
    rows: RowsOption = None,
    out_file: OutOption = None,
    send_again: SendOption = None,
    yes: YesOption = False,
    fence: FenceOption = False,
    json: JsonOption = False,
) -> None:
    """Decide about a checkpoint that is decided and cannot be committed, whatever the reason.

    Without a choice it shows what is stuck and what each choice means, changes nothing, and exits with code 1 when
    something is. With one it asks first, records the order in the log, and leaves a report with the rows that could be
    kept; the next start of the query goes on from there. Without CHECKPOINT, --sink means everything the sink owes.
    """
    with reporting(json=json) as out:
        found = read_status(location)
        if found.damaged or found.pipeline is None:
            raise RecordError("; ".join(d.problem for d in found.damaged) or f"{location} has no lineage record")
        if list_reports:
            reports.list_reports(out, found)
            return
        if rows is not None:
            reports.show_rows(out, location, rows, sink, out_file)
            return
        wanted = {
            TRY_AGAIN: try_again,
            PRODUCE_ANYWAY: produce_anyway,
            GIVE_UP: give_up,
            MARK_DELIVERED: mark_delivered,
            ACCEPT_RESTORED: accept_restored,
            "send-again": send_again is not None,
        }
        chosen = [how for how, is_wanted in wanted.items() if is_wanted]
        if len(chosen) > 1:
            raise ConfigError(f"choose one: {', '.join(f'--{how}' for how in chosen)}")
        if not chosen:
            _show(out, found, checkpoint, sink)
        if send_again is not None:
            ask(out, f"the rows kept of checkpoint {send_again} are sent again", yes=yes)
            reports.send_again(out, location, send_again, sink, operator.who())
            return
        if not fence:
            operator.refuse_running(found)
        if accept_restored:
            _accept(out, found, sink, yes=yes)
            return
        _decide(out, found, checkpoint, sink, chosen[0], yes=yes)


def _decide(out: Output, found: Status, checkpoint: int | None, sink: str | None, how: str, *, yes: bool) -> None:
    location, pipeline = found.location, str(found.pipeline)
    log = LogReader(location)
    log.load()
    orders.finish(log, present=log.sink_names())
    meant = choose(log, checkpoint, sink, whole_sink=how in (GIVE_UP, MARK_DELIVERED, TRY_AGAIN))
    for finding in meant:
        ways_out.check_way(location, finding, how)
    ask(out, f"{operator.question(meant, how)}{operator.elsewhere(found.owner)}", yes=yes)
    if how == TRY_AGAIN:
        ways_out.try_again(log.storage, meant)
        names = [{"checkpoint_id": f.checkpoint_id, "sink": f.sink} for f in meant]
        told = "Start the query: it tries again, and says anew why if it cannot."
        out.result({"location": location, "try_again": names}, lambda: Text(told))
        return
    done = ways_out.record_orders(location, pipeline, meant, how, operator.who())
    first = {"report": done[0]} if len(done) == 1 else {}
    out.result({"location": location, **first, "reports": done}, lambda: Group(*map(_report, done)))


def _accept(out: Output, found: Status, sink: str | None, *, yes: bool) -> None:
    if sink is None:
        raise ConfigError("--accept-restored needs --sink: which endpoint was restored?")
    log = LogReader(found.location)
    log.load()
    missing = ways_out.missing_in(log, found.location, sink)
    ask(out, f"{ways_out.accept_consequence(missing)}{operator.elsewhere(found.owner)}", yes=yes)
    report = ways_out.accept_restored(found.location, str(found.pipeline), missing, operator.who())
    out.result({"location": found.location, "report": report}, lambda: _report(report))


def _show(out: Output, found: Status, checkpoint: int | None, sink: str | None) -> None:
    """What is stuck and the ways out; if one is named, that one, or why it is not."""
    log = LogReader(found.location)
    log.load()
    if checkpoint is not None or sink is not None:
        shown = choose(log, checkpoint, sink, whole_sink=True)
    else:
        shown = list(found.stuck)
    out.result(_document(found, shown), lambda: _text(found, shown))
    out.exit(BROKEN if shown else OK)


def _document(found: Status, shown: Sequence[Finding]) -> dict[str, Any]:
    stuck = [{**asdict(f), "ways": {how: ways_out.consequence(f, how) for how in ways_out.ways(f)}} for f in shown]
    return {"location": found.location, "stuck": stuck, "resolutions": list(found.resolutions)}


def _text(found: Status, shown: Sequence[Finding]) -> RenderableType:
    if not shown:
        owed = sum(p.checkpoints for p in found.pending)
        more = f"; {owed} checkpoints are owed and wait for a driver (holdfast status)" if owed else ""
        return Text(f"nothing is stuck{more}")
    return Group(*[part for f in shown for part in _shown(f, found.location)])


def _shown(f: Finding, location: str) -> list[RenderableType]:
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    replay = "none seen"
    if f.replay_rows is not None:
        replay = f"{f.replay_rows:,} rows in {f.replay_subtasks} subtasks; it differs"
    for name, value in (
        ("checkpoint", str(f.checkpoint_id)),
        ("sink", f.sink),
        (_what(f), f"{f.rows:,} rows of subtasks {', '.join(map(str, f.subtasks))}"),
        ("since", f"{moment(f.since)} ({age(f.since)} ago)"),
        ("replay", replay),
        ("problem", f.problem),
    ):
        facts.add_row(Text(name, style="bold"), Text(value))
    command = f"holdfast resolve {location} {f.checkpoint_id} --sink {f.sink}"
    ways = [Text(f"{command} --{how}\n    {ways_out.consequence(f, how)}") for how in ways_out.ways(f)]
    return [facts, Text("Ways out, each of which asks first:"), *ways]


def _what(f: Finding) -> str:
    return "lost" if f.certain else "may be lost" if f.error == "LostError" else "not committed"


def _report(report: Mapping[str, Any]) -> RenderableType:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name in ("checkpoint_id", "sink", "how", "by", "host", "rows", "subtasks"):
        table.add_row(Text(name, style="bold"), Text(str(report[name])))
    for name, count in report["expected"].items():
        table.add_row(Text(name, style="bold"), Text(f"{count:,}"))
    kept = reports.rows_kept(report)
    if kept:
        table.add_row(Text("rows_kept", style="bold"), Text(f"{kept:,}"))
    for problem in [f["problem"] for f in report.get("files", ()) if "problem" in f]:
        table.add_row(Text("not kept", style="bold"), Text(problem))
    last = "Start the query: it goes on from there."
    if not report["carried_out"]:
        last = "Start the query: it carries this out and leaves its own report (holdfast status). Numbers are expected."
    return Group(table, Text(last))
