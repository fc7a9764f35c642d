"""Savepoints, starting from one, and going back, for `make mutants`."""

from __future__ import annotations

from mutant import mutant

TESTS = "tests/unit/test_savepoint.py"
SAVEPOINTS = (
    mutant(
        "savepoint: a sink that is ahead is taken over unasked",
        "checkpoint/origin.py",
        "if mark <= agreed or self.ahead is Ahead.REDELIVER:",
        "if True:",
        TESTS,
    ),
    mutant(
        "savepoint: rows are skipped without a proof",
        "checkpoint/refusals.py",
        "if not is_equal(expected, replay):",
        "if False:",
        TESTS,
    ),
    mutant(
        "savepoint: plans that lead the commits by more than one are copied",
        "checkpoint/enginefiles.py",
        "if number <= through + 1]",
        "if True]",
        TESTS,
    ),
    mutant(
        "savepoint: a driver that starts meanwhile is not noticed",
        "checkpoint/savepoint.py",
        "log.ensure_not_fenced()",
        "pass",
        TESTS,
    ),
    mutant(
        "savepoint: undelivered rows are left behind",
        "checkpoint/savepoint.py",
        "check_delivered(log, location)\n decided =",
        "decided =",
        TESTS,
    ),
    mutant(
        "rewind: one that is interrupted at its end forgets whose ledgers sinks have",
        "checkpoint/rewind.py",
        "plan.lineage or log.lineage",
        "log.lineage",
        "tests/unit/test_rewind.py",
    ),
    mutant(
        "rewind: the history goes on to tell of what was left",
        "checkpoint/history.py",
        "elif number <= merged.limit and (",
        "elif (",
        "tests/unit/test_rewind.py",
    ),
)
