"""`holdfast monitoring`: what Prometheus and Grafana need to watch pipelines."""

from __future__ import annotations

import json as json_module
from importlib.resources import files

import typer

from holdfast.telemetry.grafana import dashboard

app = typer.Typer(
    help="Print what Prometheus and Grafana need to watch pipelines.",
    epilog="Example: holdfast monitoring rules > holdfast.rules.yml",
    no_args_is_help=True,
)


@app.command(epilog="Example: holdfast monitoring rules > holdfast.rules.yml")
def rules() -> None:
    """Print recording and alert rules for Prometheus, each alert with what to do."""
    typer.echo((files("holdfast.telemetry") / "rules.yml").read_text(encoding="utf-8"), nl=False)


@app.command(epilog="Example: holdfast monitoring grafana > holdfast.json")
def grafana() -> None:
    """Print a dashboard for Grafana's "Import dashboard", with a panel for every metric."""
    typer.echo(json_module.dumps(dashboard(), indent=2))
