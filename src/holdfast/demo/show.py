"""What the demo shows: a live table on a terminal, a line now and then elsewhere, a summary at the end."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from holdfast.demo.audit import DemoAudit
from holdfast.demo.plan import MOMENTS, Plan
from holdfast.demo.run import Demo, Progress

#: seconds between two lines when there is no terminal
LINE_EVERY = 5.0
KEPT, BROKEN = "Every row arrived once at both", "NOT AS PROMISED"


class Show:
    """Shows progress while the block runs."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console, self._plan = console, plan
        self._next_line = 0.0
        self._bar = Bar(TextColumn("rows delivered"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._bar.add_task("", total=plan.rows)
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> Show:
        plan = self._plan
        self._say(f"{plan.rows:,} orders, {len(plan.kills)} kills, seed {plan.seed}")
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, progress: Progress) -> None:
        """The newest numbers."""
        if self._live is not None:
            self._bar.update(self._task, completed=progress.delivered)
            self._live.update(Group(self._bar, _table(progress, self._plan)))
        elif progress.seconds >= self._next_line:
            self._next_line = progress.seconds + LINE_EVERY
            self._say(_line(progress))

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def _table(progress: Progress, plan: Plan) -> Table:
    table = Table("rows in", "in SQLite", "at the endpoint", "endpoint", "pending checkpoints", "kills", "driver")
    table.add_row(
        f"{progress.rows_in:,}",
        f"{progress.sqlite:,}",
        f"{progress.endpoint:,}",
        "[green]up" if progress.endpoint_up else "[red]down",
        f"{progress.pending:,}",
        f"{progress.kills} of {len(plan.kills)}",
        progress.driver,
    )
    return table


def _line(progress: Progress) -> str:
    return (
        f"{progress.seconds:5.1f} s  in {progress.rows_in:,}  SQLite {progress.sqlite:,}  endpoint "
        f"{progress.endpoint:,} ({'up' if progress.endpoint_up else 'down'})  pending {progress.pending}  "
        f"kills {progress.kills}  driver {progress.driver}"
    )


def verdict(text: str) -> Text:
    """The summary with its verdict in colour."""
    shown = Text(text)
    shown.highlight_words([KEPT], "bold green")
    shown.highlight_words([BROKEN], "bold red")
    return shown


def summary(plan: Plan, run: Demo, found: DemoAudit, problems: list[str]) -> str:
    """The verdict in words and numbers."""
    endpoint = run.endpoint
    lines = [f"{'':14}{'in':>10}{'out':>10}{'lost':>8}{'doubled':>9}"]
    lines += [
        f"{name:14}{report.rows_in:>10,}{report.rows_out:>10,}{len(report.lost):>8,}{len(report.doubled):>9,}"
        for name, report in found.reports.items()
    ]
    lines.append("")
    lines += [f"Killed at {kill.at:5.1f} s {MOMENTS[kill.moment]} (process {kill.pid})" for kill in run.killed]
    lines.append(
        f"{found.checkpoints} checkpoints in {found.generations} generations and {run.progress.seconds:.0f} s; up to "
        f"{run.progress.most_pending} waited while the endpoint was down ({endpoint.refused} posts refused)"
    )
    lines.append(
        f"{endpoint.posts} posts taken, {endpoint.repeated} of them repeats of a post whose answer was lost: the "
        "endpoint knew their keys and kept each row once"
    )
    if problems:
        lines += ["", BROKEN, *problems]
    else:
        lines.append(f"{KEPT}; nothing is pending, no write-ahead file is left")
    lines.append(f"Again: holdfast demo --seed {plan.seed} --kills {len(plan.kills)} --rows {plan.rows}")
    return "\n".join(lines)
