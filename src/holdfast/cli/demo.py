"""`holdfast demo`: kill Spark again and again, then count every row."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.output import BROKEN, OK, JsonOption, Output, reporting
from holdfast.core.audit import AuditReport
from holdfast.dashboard import require_packages
from holdfast.demo.audit import DemoAudit, audit_folder
from holdfast.demo.driver import tail
from holdfast.demo.files import Folder
from holdfast.demo.plan import Plan, make_plan
from holdfast.demo.run import Demo
from holdfast.demo.show import Show, summary, verdict
from holdfast.errors import ConfigError

SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="Repeat a run's plan; random when not given.")]
KillsOption = Annotated[int, typer.Option("--kills", min=0, max=100, help="How often the driver is killed.")]
RowsOption = Annotated[int, typer.Option("--rows", min=1, max=10_000_000, help="How many orders are streamed.")]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the folder: rows, log, checkpoints.")]

DashboardOption = Annotated[bool, typer.Option("--dashboard", help="Show the run in the browser, live.")]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="The dashboard's port; 0 takes a free one.")]


def demo(
    seed: SeedOption = None,
    kills: KillsOption = 3,
    rows: RowsOption = 20_000,
    json: JsonOption = False,
    keep: KeepOption = False,
    dashboard: DashboardOption = False,
    port: PortOption = 8787,
) -> None:
    """Stream orders with Spark, kill it with SIGKILL at random moments, and count every row at the end.

    Needs nothing but Python and Java. Orders go into SQLite and, through a write-ahead sink, to an HTTP endpoint that
    is down for part of the run. Exit code 1 if a row is lost or doubled. With --dashboard the same run can be watched
    in the browser; on a terminal the page stays until Ctrl-C.
    """
    with reporting(json=json) as out:
        require_java()
        plan = make_plan(random.randrange(1_000_000) if seed is None else seed, rows, kills)
        folder = Folder(Path(tempfile.mkdtemp(prefix="holdfast-demo-")))
        with ExitStack() as stack:
            if not keep:
                stack.callback(shutil.rmtree, folder.root, ignore_errors=True)
            page = stack.enter_context(_page(folder, port)) if dashboard else None
            if page is not None:
                out.progress.print(f"watch it at {page}", highlight=False)
            document, text = _run(out, folder, plan)
            document["dashboard"] = page
            if keep:
                document["folder"] = str(folder.root)
                text += f"\nKept: {folder.root} (try: holdfast status {folder.checkpoint})"
            out.result(document, lambda: verdict(text))
            if page is not None and not json and sys.stdout.isatty():
                out.progress.print(f"The dashboard stays at {page} until Ctrl-C", highlight=False)
                with suppress(KeyboardInterrupt):
                    signal.pause()
        out.exit(OK if document["ok"] else BROKEN)


def _page(folder: Folder, port: int) -> AbstractContextManager[str]:
    """The dashboard over the demo's pipeline."""
    require_packages()
    from holdfast.dashboard.places import Places
    from holdfast.dashboard.serve import beside
    from holdfast.dashboard.web import Site

    return beside(Site(Places([str(folder.checkpoint)], yet_unused=True), every=0.5), port)


def require_java() -> None:
    """Raise unless `java` runs; a Mac without Java has a `java` that only says so."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        works = subprocess.run([java, "-version"], capture_output=True, timeout=60, check=False).returncode == 0
    except OSError:
        works = False
    if not works:
        raise ConfigError(
            f"Spark needs Java 17 or newer and {java} does not run: install it (apt install openjdk-17-jre-headless, "
            "or brew install openjdk@17) and, if it is not on the PATH, set JAVA_HOME"
        )


def _run(out: Output, folder: Folder, plan: Plan) -> tuple[dict[str, Any], str]:
    folder.create()
    run = None
    # A polite kill is handled like Ctrl-C: it must end the driver too.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Show(out.progress, plan) as show:
            run = Demo(folder, plan, show.update)
            in_time = run.run()
    finally:
        if run is not None:
            run.close()
        signal.signal(signal.SIGTERM, before)
    found = audit_folder(folder)
    problems = _problems(found, run, in_time, folder)
    return _document(plan, run, found, problems), summary(plan, run, found, problems)


def _problems(found: DemoAudit, run: Demo, in_time: bool, folder: Folder) -> list[str]:
    problems = list(found.problems)
    if run.endpoint.changed:
        problems.append(f"{run.endpoint.changed} repeated posts held other rows than the first time")
    if not in_time:
        problems.append(f"not finished within {run.deadline:.0f} s; the end of the driver's log:\n{tail(folder)}")
    return problems


def _document(plan: Plan, run: Demo, found: DemoAudit, problems: list[str]) -> dict[str, Any]:
    endpoint = run.endpoint
    posts = {"posts": endpoint.posts, "repeated": endpoint.repeated, "refused": endpoint.refused}
    return {
        "ok": not problems,
        "problems": problems,
        "seed": plan.seed,
        "rows": plan.rows,
        "kills": len(run.killed),
        "killed": [asdict(kill) for kill in run.killed],
        "seconds": round(run.progress.seconds, 2),
        "sqlite": _counts(found.sqlite),
        "endpoint": {**_counts(found.endpoint), **posts},
        "checkpoints": found.checkpoints,
        "generations": found.generations,
        "most_pending": run.progress.most_pending,
        "pending": found.pending,
        "log_files": found.log_files,
        "folder": None,
    }


def _counts(report: AuditReport) -> dict[str, Any]:
    return {
        "in": report.rows_in,
        "out": report.rows_out,
        "lost": len(report.lost),
        "doubled": len(report.doubled),
        "never_sent": len(report.strangers),
        "ok": report.ok,
    }
