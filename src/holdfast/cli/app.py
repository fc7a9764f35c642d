"""The commands, put together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.cli.check import check
from holdfast.cli.dashboard import dashboard
from holdfast.cli.dead_letters import app as dead_letters
from holdfast.cli.demo import demo
from holdfast.cli.flush import flush
from holdfast.cli.history import history
from holdfast.cli.manual import page, with_manual
from holdfast.cli.monitoring import app as monitoring
from holdfast.cli.output import USAGE, debugging
from holdfast.cli.prepare import prepare
from holdfast.cli.resolve import resolve
from holdfast.cli.rewind import rewind
from holdfast.cli.run import new, run, schema
from holdfast.cli.savepoint import app as savepoint
from holdfast.cli.state import state
from holdfast.cli.status import status
from holdfast.cli.transactions import app as transactions
from holdfast.cli.watch import watch
from holdfast.core.version import __version__

_UsageError: Any = typer.BadParameter.__base__


@contextmanager
def _own_code() -> Iterator[None]:
    """Wrong use ends with a code of its own: 2 means `down` to whoever watches `holdfast status`."""
    try:
        yield
    except _UsageError as error:
        error.exit_code = USAGE
        raise


class _Group(TyperGroup):
    """Commands that explain themselves as manual pages do."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        return None if found is None else with_manual(found)


class _Commands(_Group):
    """All of them: --debug anywhere, and our exit code for wrong use."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page(self, ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--debug" in args:
            debugging.on = True
        with _own_code():
            return super().parse_args(ctx, [arg for arg in args if arg != "--debug"])

    def invoke(self, ctx: Any) -> Any:
        with _own_code():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    help="Exactly-once delivery for Spark Structured Streaming.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command(epilog="Example: holdfast demo --seed 7 --kills 3 --rows 10000")(demo)
app.command(epilog="Example: holdfast new kafka-to-postgres --to job.yaml")(new)
app.command(epilog="Example: holdfast prepare --kafka")(prepare)
app.command(epilog="Example: holdfast check job.yaml")(check)
app.command(epilog="Example: holdfast run job.yaml --set trigger.available_now=true")(run)
app.command(epilog="Example: holdfast schema > holdfast.schema.json")(schema)
app.command(epilog="Example: holdfast status /data/checkpoints/totals --max-age 5m")(status)
app.command(epilog="Example: holdfast watch /data/checkpoints/totals")(watch)
app.command(epilog="Example: holdfast dashboard /data/checkpoints")(dashboard)
app.command(epilog="Example: holdfast flush /data/checkpoints/totals")(flush)
app.command(epilog="Example: holdfast history /data/checkpoints/totals --last 50")(history)
app.command(epilog="Example: holdfast resolve /data/checkpoints/totals 17 --give-up")(resolve)
app.add_typer(dead_letters, name="dead-letters", cls=_Group)
app.command(epilog="Example: holdfast rewind /data/checkpoints/totals --to 41 --ahead redeliver")(rewind)
app.command(epilog="Example: holdfast state /data/checkpoints/totals --sample 10")(state)
app.add_typer(savepoint, name="savepoint", cls=_Group)
app.add_typer(transactions, name="transactions", cls=_Group)
app.add_typer(monitoring, name="monitoring", cls=_Group)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="With an error, where in the code it happened; at any place of the line.")
    ] = False,
) -> None:
    """Exactly-once delivery for Spark Structured Streaming."""
