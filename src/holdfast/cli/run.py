"""`holdfast run`, `holdfast schema` and `holdfast new`: pipelines that are described by a file."""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.jobs import JobArgument, KafkaOption, SetOption, TakeOverOption, read
from holdfast.cli.output import OK, JsonOption, reporting
from holdfast.errors import FIX, OPERATOR, RESTART, ConfigError, RefusedError
from holdfast.pipeline.help import plain_text


def run(
    job: JobArgument,
    settings: SetOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Build everything, print the plan and each sink's guarantee, start nothing."),
    ] = False,
    take_over: TakeOverOption = False,
    kafka: KafkaOption = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Start without looking first for what would break the guarantee.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", min=1, max=65535, help="Serve metrics for Prometheus at /metrics of this port."),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="The address it listens on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    openlineage: Annotated[
        str | None,
        typer.Option(
            "--openlineage",
            metavar="URL",
            help="Send OpenLineage events of the run and each checkpoint there; OPENLINEAGE_API_KEY holds a key.",
        ),
    ] = None,
    opentelemetry: Annotated[
        str | None,
        typer.Option("--opentelemetry", metavar="URL", help="Send a trace of each checkpoint there: OTLP over HTTP."),
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON objects, on standard error.")] = False,
    json: JsonOption = False,
) -> None:
    """Run a pipeline until it is stopped or, with a bounded trigger, until all is delivered.

    SIGTERM and Ctrl-C end it after the current checkpoint, a second one at once. Exit codes: 0 ended well; 1 it failed
    and a restart may mend it; 2 a person has to look; 3 the job file or the query is wrong; 128 and the signal's number
    after a second signal.
    """
    from holdfast.pipeline import logs, plan
    from holdfast.pipeline.runner import CODES, Runner
    from holdfast.pipeline.view import View
    from holdfast.telemetry.openlineage import lineage
    from holdfast.telemetry.opentelemetry import traces
    from holdfast.telemetry.serve import metrics

    with reporting(json=json) as out:
        made = read(job, settings, kafka=kafka, keep=not dry_run)
        built, secrets = made.built, made.secrets
        logs.set_up(made.name, secrets, as_json=log_json)
        if dry_run:
            found = plan.describe(built.writer(built.session()))
            hidden = json_module.loads(secrets.hide(json_module.dumps(found)))
            out.result(hidden, lambda: _plan(hidden))
            out.exit(OK)
        console = Console(stderr=json, width=None if sys.stdout.isatty() else 220)
        view = View(console, secrets, json_lines=json)
        before = None if no_check else partial(refuse, say=view.say)
        with ExitStack() as stack:
            if metrics_port is not None:
                stack.callback(metrics(metrics_port, metrics_host).close)
            if openlineage is not None:
                key = os.environ.get("OPENLINEAGE_API_KEY") or None
                stack.callback(lineage(openlineage, api_key=key, hide_also=secrets.hide).close)
            if opentelemetry is not None:
                stack.callback(traces(opentelemetry, hide_also=secrets.hide).close)
            code = Runner(built, view, restart=made.restart, take_over=take_over, before=before).run()
        assert code == 0 or code in CODES.values() or code > 128
        out.exit(code)


def refuse(writer: Any, *, say: Callable[[str], None]) -> None:
    """Check what is about to be started: warnings are told, what is fatal is an error.

    An endpoint that is only away is left to the start, which waits for it as `retry` says.
    """
    from holdfast.pipeline.checks.examine import look

    found = look(writer)
    for finding in found:
        if finding.level == "warning" or (finding.level == "fatal" and finding.action == RESTART):
            say(f"{finding.level}: {finding.check} ({finding.subject}): {finding.text}. {finding.remedy}")
    bad = [finding for finding in found if finding.level == "fatal" and finding.action != RESTART]
    if bad:
        told = "; ".join(f"{f.check} ({f.subject}): {f.text}. {f.remedy}" for f in bad)
        action = FIX if any(finding.action == FIX for finding in bad) else OPERATOR
        many = f"{len(bad)} of {len(found)} checks before the start are fatal"
        raise RefusedError(f"not started, {many} (--no-check starts all the same): {told}", action)


def _plan(found: dict[str, Any]) -> RenderableType:
    sinks = Table("sink", "kind", "mode", "where", "guarantee", title="Sinks", title_justify="left")
    for sink in found["sinks"]:
        cells = (sink["name"], sink["kind"], sink["mode"] or "", sink["address"], sink["guarantee"])
        sinks.add_row(*(Text(str(cell)) for cell in cells))
    columns = Table("column", "type", title="Rows", title_justify="left")
    for name, kind in found["columns"].items():
        columns.add_row(Text(name), Text(kind))
    head = Text(f"pipeline {found['pipeline']}, checkpoints in {found['checkpoint_location']}; nothing was started")
    return Group(head, columns, sinks, Text("Spark's plan", style="italic"), Text(found["plan"]))


def schema(
    name: Annotated[str | None, typer.Argument(help="A sink, as job files call it: its options, as a table.")] = None,
    json: JsonOption = False,
) -> None:
    """Print the JSON schema of job files, for editors that complete and check them; or the options of a sink."""
    from holdfast.pipeline.model import SINKS, job_model
    from holdfast.pipeline.options import options_of

    with reporting(json=json) as out:
        if name is None:
            document = job_model().model_json_schema()
            document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
            typer.echo(json_module.dumps(document, indent=2))
            out.exit(OK)
        if name not in SINKS:
            raise ConfigError(f"there is no sink {name!r} in job files; there are {', '.join(SINKS)}")
        found = [
            {
                "name": option.name,
                "takes": option.takes,
                "default": option.shown,
                "help": plain_text(option.help),
            }
            for option in options_of(SINKS[name].target)
        ]
        out.result({"sink": name, "options": found}, lambda: _options(found))
        out.exit(OK)


def _options(found: list[dict[str, str]]) -> RenderableType:
    table = Table("option", "what it may be", "default", "what it is")
    for option in found:
        table.add_row(*(Text(cell) for cell in option.values()))
    return table


def new(
    template: Annotated[str | None, typer.Argument(help="Which one; without it, they are listed.")] = None,
    to: Annotated[Path, typer.Option("--to", help="Where to write it.")] = Path("job.yaml"),
    compose_free: Annotated[
        bool,
        typer.Option("--compose-free", help="Beside it, servers.py: starts the servers it needs, without containers."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write a commented job file to begin with."""
    from holdfast.pipeline.templates import TEMPLATES, find, servers_script

    with reporting(json=json) as out:
        if template is None:
            out.result({"templates": TEMPLATES}, lambda: _templates())
            out.exit(OK)
        text, script = find(template), to.with_name("servers.py")
        wanted = servers_script(template, to.name, script.name) if compose_free else None
        for path in (to, script) if wanted is not None else (to,):
            if path.exists():
                raise ConfigError(f"{path} is there already: choose another file with --to")
        written = [_write(to, text)] + ([] if wanted is None else [_write(script, wanted)])
        found = {"written": written, "template": template}
        out.result(found, lambda: Text(_next_steps(to, None if wanted is None else script, asked=compose_free)))


def _next_steps(job: Path, script: Path | None, *, asked: bool) -> str:
    if script is not None:
        return f"wrote {job} and {script}. See it run: python {script} holdfast run {job}"
    needless = " It needs no servers." if asked else ""
    return f"wrote {job}: fill in what it says, then holdfast check {job}, then holdfast run {job}.{needless}"


def _templates() -> RenderableType:
    from holdfast.pipeline.templates import TEMPLATES

    table = Table("template", "what it does")
    for name, about in TEMPLATES.items():
        table.add_row(Text(name), Text(about))
    return table


def _write(to: Path, text: str) -> str:
    try:
        with to.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{to} is there already: choose another file with --to") from None
    return str(to)
