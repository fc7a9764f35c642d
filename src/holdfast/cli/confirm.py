"""Asking before something that cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.checkpoint.status import Status
from holdfast.cli.output import BROKEN, Output
from holdfast.errors import CheckpointInUseError, ConfigError

YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")]


def confirm(what: str, *, yes: bool) -> bool:
    """Whether the person at the terminal, or the script with `--yes`, wants it."""
    if yes:
        return True
    if not interactive():
        raise ConfigError(f"{what}. This must be confirmed, and there is no terminal to ask on: pass --yes")
    return typer.confirm(f"{what}. Go on?", err=True)


def ask(out: Output, what: str, *, yes: bool) -> None:
    """End the command unless it is wanted."""
    if not confirm(what, yes=yes):
        out.error("not confirmed: nothing was changed")
        out.exit(BROKEN)


def refuse_running(found: Status, why: str, *, fence: bool) -> None:
    """CheckpointInUseError while a driver runs, or may: a command that claims a generation would stop it."""
    owner = found.owner
    if fence or owner is None or owner.alive is False:
        return
    state = "seems to run" if owner.alive else "may run"
    raise CheckpointInUseError(
        f"the pipeline {found.pipeline!r} {state} in process {owner.pid} on {owner.host}, {why}; or pass --fence: that "
        "process is then stopped at its next checkpoint"
    )


def interactive() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()
