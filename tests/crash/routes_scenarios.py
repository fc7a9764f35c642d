"""The column of the fault matrix for routes: three sinks with overlapping rows, one of them a table for each word."""

from __future__ import annotations

from typing import Any

import holdfast as hf
from holdfast.testing.audit import AuditReport, audit
from tests.crash.harness import WORDS, Row, Work, input_row
from tests.crash.scenarios import Case, crash_then_restart, zombie

SINKS = ("routes",)
#: table, which is the name of the sink too -> the predicate of its route, in Spark SQL and here
ROUTES: dict[str, tuple[str, Any]] = {
    "even": ("id % 2 = 0", lambda number: number % 2 == 0),
    "third": ("id % 3 = 0", lambda number: number % 3 == 0),
    "words": ("word <> 'oak'", lambda number: number % len(WORDS) != 0),
}


def routes(work: str) -> list[Any]:
    """The sinks of the driver."""
    tables = {"even": "even", "third": "third", "words": "words_{word}"}
    return [
        hf.route(hf.SqliteSink(f"{work}/out.db", tables[name], name=name), where=where, select=["at", "id", "word"])
        for name, (where, _) in ROUTES.items()
    ]


class RoutesWork(Work):
    """Each table has the rows of its route, each once."""

    def received(self, table: str = "even") -> list[Row]:
        """See Work."""
        names = [f"words_{word}" for word in WORDS if word != "oak"] if table == "words" else [table]
        there = {name for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return [row for name in names if name in there for row in super(RoutesWork, self).received(name)]

    def audits(self) -> list[AuditReport]:
        """One for each route."""
        return [
            audit([input_row(n) for n in self.sent() if wanted(n)], self.received(table))
            for table, (_, wanted) in ROUTES.items()
        ]

    def counts(self) -> list[int]:
        """How many rows are to be seen in each."""
        return [len(self.received(table)) for table in ROUTES]

    def expected(self, table: str, checkpoints: int) -> int:
        """How many rows of the first checkpoints go there."""
        return sum(
            1 for n in self.sent() if n < checkpoints * len(self.sent()) // self.checkpoints and ROUTES[table][1](n)
        )


def killed_between_each_two_commits(work: Work) -> None:
    """Two of the three have committed a checkpoint, the driver dies; the next run begins with what is late."""
    assert isinstance(work, RoutesWork)
    for checkpoint, late in enumerate(ROUTES):
        others = set(ROUTES) - {late}
        work.kill_when(f"commit.sink:{late}=hang", lambda at=checkpoint, done=others: done <= work.committed_by(at))  # type: ignore[misc]
        assert late not in work.committed_by(checkpoint), work.log()
        seen = [work.expected(table, checkpoint + (table != late)) for table in ROUTES]
        assert work.counts() == seen, f"{late} was late\n{work.log()}"
    work.run_clean()
    work.assert_clean()


CASES = [
    Case(4, "k of n committed", "routes", "each two commits", killed_between_each_two_commits, always=True),
    Case(1, "in the middle of a task", "routes", "kill", crash_then_restart("task.write=kill@2")),
    Case(2, "all tasks prepared, no decision", "routes", "kill", crash_then_restart("decision=kill@2")),
    Case(3, "decision durable, nothing committed", "routes", "kill", crash_then_restart("decision=kill-after@2")),
    Case(5, "committed, answer lost", "routes", "kill", crash_then_restart("commit.record=kill@3")),
    Case(
        9,
        "driver stopped, second driver started, first continued",
        "routes",
        "before decision",
        zombie("decision=stop@2"),
    ),
]
