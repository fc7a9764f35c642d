"""`--help` as a manual page: name, synopsis, description, options, exit codes, an example."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

_INDENT, _MARGIN, _WIDEST = "    ", 2, 100
#: the commands, by what somebody wants to do
CHAPTERS = {
    "Begin": ("demo", "new", "schema", "prepare"),
    "Run": ("check", "run"),
    "Watch": ("status", "watch", "dashboard", "history", "monitoring"),
    "Decide and mend": ("resolve", "dead-letters", "transactions", "flush", "rewind"),
    "Keep and look into": ("savepoint", "state"),
}
DESCRIPTION = """
holdfast delivers the rows of Spark Structured Streaming exactly once into Kafka, databases, files and endpoints of your
own. Pipelines are written in Python (import holdfast) or as job files (holdfast new); these commands run them, watch
them, and help when something has gone wrong. A pipeline is named by its checkpoint LOCATION, a path or a URL.

Commands that watch read files only: they work while a query runs, after it was stopped and after a crash, and they
change nothing. Commands that decide ask first.
"""
EXIT_CODES = (
    ("0", "as promised: done, or healthy"),
    ("1", "not as promised, degraded, refused; run: it failed and a restart may mend it"),
    ("2", "down, or the store of the location does not answer; run: a person has to look"),
    ("3", "wrong use, a bad location, a wrong job file"),
    ("70", "a bug in holdfast: run it again with --debug and tell us"),
    ("128+n", "ended by signal n"),
)
ENVIRONMENT = (
    ("JAVA_HOME", "the Java that Spark runs on, 17 or newer"),
    ("PYSPARK_PYTHON", "the Python of Spark's workers; default: this one"),
    ("HOLDFAST_DEBUG", "not empty: as --debug"),
    ("NO_COLOR", "not empty: no colours"),
)
EXAMPLES = (
    ("see it work", "holdfast demo --dashboard"),
    ("write, check, run a pipeline", "holdfast new kafka-to-postgres; holdfast check job.yaml; holdfast run job.yaml"),
    ("is it healthy? for a pager", "holdfast status /data/checkpoints/totals --max-age 5m"),
    ("all pipelines in the browser", "holdfast dashboard /data/checkpoints"),
    ("complete commands by Tab", "holdfast --install-completion"),
)  # fmt: skip


def with_manual(command: Any) -> Any:
    """The command, whose --help is a manual page."""
    command.format_help = lambda ctx, formatter: formatter.write(page(command, ctx))
    return command


def page(command: Any, ctx: Any) -> str:
    """The whole page."""
    width = min(_WIDEST, shutil.get_terminal_size((80, 24)).columns) - _MARGIN
    about = inspect.cleandoc(command.help or "").split("\n\n")
    top = ctx.parent is None
    groups = list(getattr(command, "commands", {}))
    parts: list[tuple[str, Iterator[str]]] = [
        ("Name", _text(f"{ctx.command_path} - {_lower(about[0])}", width)),
        ("Synopsis", _text(f"{ctx.command_path} {_usage(command, ctx)}", width)),
    ]
    rest = DESCRIPTION if top else "\n\n".join(about[1:])
    if rest.strip():
        parts.append(("Description", _text(rest, width)))
    if top:
        left = [name for name in groups if not any(name in names for names in CHAPTERS.values())]
        chapters = {**CHAPTERS, **({"Other": tuple(left)} if left else {})}
        parts += [(title, _commands(command, ctx, names, width)) for title, names in chapters.items()]
    elif groups:
        parts.append(("Commands", _commands(command, ctx, groups, width)))
    params = [p for p in command.get_params(ctx) if not getattr(p, "hidden", False)]
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        found = [_entry(p) for p in params if p.param_type_name == kind and (kind == "option" or p.help)]
        if found:
            parts.append((title, _table(found, width)))
    if top:
        parts += [("Exit codes", _table(EXIT_CODES, width)), ("Environment", _table(ENVIRONMENT, width))]
        parts.append(("Examples", _examples()))
        parts.append(("See also", _text("docs/index.md, and `holdfast COMMAND --help` for each command.", width)))
    elif command.epilog:
        parts.append(("Example", iter([f"{_INDENT}{command.epilog.removeprefix('Example: ')}"])))
    return "\n\n".join(f"{_head(title)}\n" + "\n".join(lines) for title, lines in parts) + "\n"


def _usage(command: Any, ctx: Any) -> str:
    found = ["[OPTIONS]"]
    for param in command.get_params(ctx):
        if param.param_type_name == "argument":
            name = _entry(param)[0]
            found.append(name if param.required else f"[{name}]")
    return " ".join(found + (["COMMAND [ARGS]..."] if hasattr(command, "commands") else []))


def _head(title: str) -> str:
    shown = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[1m{title.upper()}\x1b[0m" if shown else title.upper()


def _lower(sentence: str) -> str:
    line = " ".join(sentence.split())
    return f"{line[:1].lower()}{line[1:]}".rstrip(".")


def _text(text: str, width: int) -> Iterator[str]:
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        if number:
            yield ""
        yield from _wrapped(paragraph, width)


def _wrapped(text: str, width: int, indent: str = _INDENT) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _table(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Short names beside their text, long ones above it."""
    column = min(24, max(len(name) for name, _ in rows)) + len(_INDENT) + 2
    for name, text in rows:
        lines = _wrapped(text, width, " " * column) or [""]
        if len(name) + len(_INDENT) + 2 <= column:
            yield f"{_INDENT}{name}".ljust(column) + lines[0].strip()
            yield from lines[1:]
        else:
            yield f"{_INDENT}{name}"
            yield from lines


def _commands(group: Any, ctx: Any, names: Sequence[str], width: int) -> Iterator[str]:
    found = [(name, group.get_command(ctx, name)) for name in names]
    rows = [(name, _lower((command.help or "").partition("\n\n")[0])) for name, command in found if command is not None]
    return _table(rows, width)


def _entry(param: Any) -> tuple[str, str]:
    """An option or argument: how it is written, and what it is."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper()).strip("{}[]"), param.help or ""
    names = ", ".join([*param.opts, *param.secondary_opts])
    flag = getattr(param, "is_flag", False) or param.name == "help"
    value = "" if flag else f" {param.metavar or param.opts[-1].rpartition('-')[2].upper()}"
    default = param.default
    shown = not flag and default is not None and not callable(default) and default != () and str(default) != ""
    beside = f" Default: {getattr(default, 'value', default)}." if shown else ""
    again = " May be repeated." if param.multiple and "repeated" not in (param.help or "") else ""
    return f"{names}{value}", f"{param.help or ''}{beside}{again}"


def _examples() -> Iterator[str]:
    for number, (what, command) in enumerate(EXAMPLES):
        if number:
            yield ""
        yield f"{_INDENT}{what}:"
        yield f"{_INDENT}{_INDENT}{command}"
