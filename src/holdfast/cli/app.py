"""The commands, put together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast import __version__
from holdfast.cli.check import check
from holdfast.cli.dashboard import dashboard
from holdfast.cli.dead_letters import app as dead_letters
from holdfast.cli.demo import demo
from holdfast.cli.flush import flush
from holdfast.cli.history import history
from holdfast.cli.output import USAGE
from holdfast.cli.prepare import prepare
from holdfast.cli.resolve import resolve
from holdfast.cli.rewind import rewind
from holdfast.cli.run import new, run, schema
from holdfast.cli.savepoint import app as savepoint
from holdfast.cli.state import state
from holdfast.cli.status import status
from holdfast.cli.transactions import app as transactions
from holdfast.cli.watch import watch

_UsageError: Any = typer.BadParameter.__base__


@contextmanager
def _own_code() -> Iterator[None]:
    """Wrong use ends with a code of its own: 2 means `down` to whoever watches `holdfast status`."""
    try:
        yield
    except _UsageError as error:
        error.exit_code = USAGE
        raise


class _Commands(TyperGroup):
    """The commands, with our exit code for wrong use."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _own_code():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _own_code():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    help="Exactly-once delivery for Spark Structured Streaming.",
    epilog="Example: holdfast demo --seed 7",
    no_args_is_help=True,
    add_completion=False,
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
app.add_typer(dead_letters, name="dead-letters")
app.command(epilog="Example: holdfast rewind /data/checkpoints/totals --to 41 --ahead redeliver")(rewind)
app.command(epilog="Example: holdfast state /data/checkpoints/totals --sample 10")(state)
app.add_typer(savepoint, name="savepoint")
app.add_typer(transactions, name="transactions")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exactly-once delivery for Spark Structured Streaming."""
