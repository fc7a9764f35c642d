"""The `holdfast` command. Nothing here imports Spark until a command needs it."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script."""
    from holdfast.cli.app import app
    from holdfast.cli.output import reporting_bugs

    with reporting_bugs():
        app(prog_name="holdfast")
