"""`holdfast run`, `holdfast schema` and `holdfast new`: pipelines that are described by a file."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.output import OK, JsonOption, Output, reporting
from holdfast.errors import ConfigError

JobArgument = Annotated[Path, typer.Argument(help="A job file (.yaml), or a Python file with def pipeline(spark).")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Overrules the job file: --set trigger.once=true. May be repeated."
    ),
]


def run(
    job: JobArgument,
    settings: SetOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Build everything, print the plan and each sink's guarantee, start nothing."),
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Let this checkpoint location own the name, for this start.")
    ] = False,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="For a Python file: give its Spark the Kafka connector.")
    ] = False,
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
    from holdfast.pipeline.secrets import Secrets
    from holdfast.pipeline.view import View

    with reporting(json=json) as out:
        secrets, restart = Secrets(), None
        if job.suffix == ".py":
            from holdfast.pipeline.python_job import PythonJob

            if settings:
                raise ConfigError("--set is for job files: a Python file reads its own arguments and environment")
            built: Any = PythonJob(job, kafka=kafka)
            name = job.stem
        else:
            from holdfast.pipeline.build import Builder
            from holdfast.pipeline.problems import read_job

            described = read_job(job, tuple(settings or ()))
            built, secrets, restart = Builder(described), described.secrets, described.job.restart
            name = built.job.name
        logs.set_up(name, secrets, as_json=log_json)
        if dry_run:
            found = plan.describe(built.writer(built.session()))
            hidden = json_module.loads(secrets.hide(json_module.dumps(found)))
            out.result(hidden, lambda: _plan(hidden))
            out.exit(OK)
        console = Console(stderr=json, width=None if sys.stdout.isatty() else 220)
        runner = Runner(built, View(console, secrets, json_lines=json), restart=restart, take_over=take_over)
        code = runner.run()
        assert code == 0 or code in CODES.values() or code > 128
        out.exit(code)


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


def schema() -> None:
    """Print the JSON schema of job files, for editors that complete and check them."""
    from holdfast.pipeline.model import job_model

    document = job_model().model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    typer.echo(json_module.dumps(document, indent=2))


def new(
    template: Annotated[str | None, typer.Argument(help="Which one; without it, they are listed.")] = None,
    to: Annotated[Path, typer.Option("--to", help="Where to write it.")] = Path("job.yaml"),
    json: JsonOption = False,
) -> None:
    """Write a commented job file to begin with."""
    from holdfast.pipeline.templates import TEMPLATES, find

    with reporting(json=json) as out:
        if template is None:
            out.result({"templates": TEMPLATES}, lambda: _templates())
            out.exit(OK)
        _write(out, to, find(template), template)


def _templates() -> RenderableType:
    from holdfast.pipeline.templates import TEMPLATES

    table = Table("template", "what it does")
    for name, about in TEMPLATES.items():
        table.add_row(Text(name), Text(about))
    return table


def _write(out: Output, to: Path, text: str, template: str) -> None:
    try:
        with to.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{to} is there already: choose another file with --to") from None
    out.result(
        {"written": str(to), "template": template},
        lambda: Text(f"wrote {to}: fill in what it says, then holdfast run {to} --dry-run, then holdfast run {to}"),
    )
