"""`holdfast check`: what would break the guarantee of a job, before it is started."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.jobs import JobArgument, KafkaOption, SetOption, TakeOverOption, read
from holdfast.cli.output import BROKEN, IS_DOWN, OK, JsonOption, reporting

if TYPE_CHECKING:
    from holdfast.pipeline.checks.registry import Finding

_CODES = {"ok": OK, "warning": BROKEN, "fatal": IS_DOWN}
_STYLES = {"ok": "green", "warning": "yellow", "fatal": "red"}


def check(
    job: JobArgument,
    settings: SetOption = None,
    take_over: TakeOverOption = False,
    kafka: KafkaOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Leave out what is as it should be.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds for each endpoint.")] = 60.0,
    json: JsonOption = False,
) -> None:
    """Reach every system of a job, and say what would break its guarantee, with a remedy for each.

    Changes nothing at any endpoint and starts nothing. Exit codes: 0 all is as it should be, 1 warnings, 2 something
    is fatal and run would refuse it, 3 wrong use or a bad job file.
    """
    from holdfast.pipeline import logs
    from holdfast.pipeline.checks.examine import examine
    from holdfast.pipeline.runner import building

    with reporting(json=json) as out:
        made = read(job, settings, kafka=kafka, keep=False)
        logs.set_up(made.name, made.secrets, as_json=False)

        def writer(spark: Any) -> Any:
            with building():
                # A Python file says itself whether it takes over.
                return made.built.writer(spark, **({"take_over": True} if take_over else {}))

        def session() -> Any:
            with building():
                return made.built.session()

        found = examine(session, writer, patience=timeout)
        shown = [f for f in found if not quiet or f.level != "ok"]
        worst = worst_of(found)
        document = {"job": str(job), "pipeline": made.name, "level": worst, "findings": [f.document() for f in shown]}
        hidden = json_module.loads(made.secrets.hide(json_module.dumps(document)))
        out.result(hidden, lambda: _table(hidden))
        out.exit(_CODES[worst])


def worst_of(found: Sequence[Finding]) -> str:
    """The level of them all."""
    levels = {str(finding.level) for finding in found}
    return next((level for level in ("fatal", "warning") if level in levels), "ok")


def _table(document: dict[str, Any]) -> RenderableType:
    table = Table("level", "check", "where", "finding, and its remedy")
    for finding in document["findings"]:
        level = Text(finding["level"], style=_STYLES[finding["level"]])
        told = Text(finding["text"])
        if finding["remedy"]:
            told.append(f"\n-> {finding['remedy']}", style="bold")
        table.add_row(level, Text(finding["check"], no_wrap=True), Text(finding["subject"]), told)
    counts = {level: sum(f["level"] == level for f in document["findings"]) for level in ("fatal", "warning")}
    sums = ", ".join(f"{count} {level}" for level, count in counts.items() if count) or "nothing to mend"
    return Group(table, Text(f"{document['pipeline']}: {sums}. Each check is explained in docs/checks.md"))
