"""Asking before something that cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.errors import ConfigError

YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")]


def confirm(what: str, *, yes: bool) -> bool:
    """Whether the person at the terminal, or the script with `--yes`, wants it."""
    if yes:
        return True
    if not interactive():
        raise ConfigError(f"{what}. This must be confirmed, and there is no terminal to ask on: pass --yes")
    return typer.confirm(f"{what}. Go on?", err=True)


def interactive() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()
