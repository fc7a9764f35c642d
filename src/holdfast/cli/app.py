"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli.demo import demo
from holdfast.cli.flush import flush
from holdfast.cli.history import history
from holdfast.cli.resolve import resolve
from holdfast.cli.status import status
from holdfast.cli.transactions import app as transactions

app = typer.Typer(
    help="Exactly-once delivery for Spark Structured Streaming.",
    epilog="Example: holdfast demo --seed 7",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(epilog="Example: holdfast demo --seed 7 --kills 3 --rows 10000")(demo)
app.command(epilog="Example: holdfast status /data/checkpoints/totals")(status)
app.command(epilog="Example: holdfast flush /data/checkpoints/totals")(flush)
app.command(epilog="Example: holdfast history /data/checkpoints/totals --last 50")(history)
app.command(epilog="Example: holdfast resolve /data/checkpoints/totals 17 --give-up")(resolve)
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
