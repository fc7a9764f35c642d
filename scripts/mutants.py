"""`make mutants`: a suite that cannot fail is worth nothing.

Switches off, one at a time, what the guarantee rests on (the fence, the ledger, the fsync, the decision, ...) in a copy
of the source, and requires the tests to go red. The same tests must be green on an unchanged copy first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    """One thing switched off: the text that is replaced, and the tests that must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


CRASH = "tests/crash/test_matrix.py::test_after_the_fault_every_row_is_delivered_once"
MODEL = "tests/unit/test_protocol_model.py::test_with_all_rules_on_no_execution_breaks_anything"
MUTANTS = (
    Mutant(
        "the fence: older generations may go on deciding",
        "core/fence.py",
        "return all(generation <= own for generation in claimed)",
        "return True",
        ("tests/unit/test_coordinator_write_ahead.py",),
    ),
    Mutant(
        "the fence: slots of older generations are left open",
        "checkpoint/log.py",
        "for slot in fence.slots_to_fence(self.generation, generations, slots, aborted):",
        "for slot in []:",
        (f"{MODEL}[two drivers, endpoint with a ledger]", "tests/unit/test_log.py"),
    ),
    Mutant(
        "the fence, both halves, in real processes",
        "checkpoint/log.py",
        "        self.ensure_not_fenced()\n        content = (",
        "        self._next = Slot(self.generation + 1000, self._next.index)\n        content = (",
        (f"{CRASH}[09-sqlite-before-decision]",),
    ),
    Mutant(
        "the ledger: a repeated commit inserts again",
        "connectors/sqlite.py",
        "if ledger.get(run.lineage, -1) >= self.checkpoint_id:",
        "if False:",
        (f"{CRASH}[05-sqlite-lost]",),
    ),
    Mutant(
        "the ledger: the mark is not written",
        "connectors/sqlite_table.py",
        "        connection.execute(_ADD_TO_LEDGER, row)\n",
        "",
        (f"{CRASH}[05-sqlite-lost]",),
    ),
    Mutant(
        "the committer: nothing is marked as delivered",
        "sinks/write_ahead.py",
        "            committer.commit_checkpoint(subtask, self.checkpoint_id)\n",
        "            pass\n",
        ("tests/unit/test_coordinator_write_ahead.py",),
    ),
    Mutant(
        "the fsync of a record",
        "checkpoint/storage.py",
        "        file.flush()\n        os.fsync(file.fileno())\n    if exclusive:",
        "        file.flush()\n    if exclusive:",
        ("tests/unit/test_storage.py",),
    ),
    Mutant(
        "the fsync of a folder",
        "checkpoint/storage.py",
        "        os.fsync(fd)\n",
        "        pass\n",
        ("tests/unit/test_storage.py",),
    ),
    Mutant(
        "the decision: nothing durable is written before the commit",
        "checkpoint/log.py",
        "created = self._create(slot_name(self._next), kind, records.new_nonce(), body)",
        "created = True",
        (f"{CRASH}[03-sqlite-kill]",),
    ),
    Mutant(
        "the sweep: undecided work stays",
        "sinks/wal.py",
        '    discard(storage, [{"handle": path} for path in removed])\n    return removed',
        "    return removed",
        (f"{CRASH}[02-write-ahead-lost]",),
    ),
    Mutant(
        "the replay: a decided batch is written again",
        "checkpoint/coordinator.py",
        "if checkpoint_id in self._log.facts.decided:",
        "if False:",
        (f"{CRASH}[06-write-ahead-error]",),
    ),
    Mutant(
        "the drain: a replayed batch is not run",
        "checkpoint/coordinator.py",
        "        batch.drain()\n",
        "        pass\n",
        ("tests/crash/test_stateful.py",),
    ),
)


def run_tests(source: Path, tests: tuple[str, ...]) -> tuple[bool, str]:
    """(green, output) of these tests against this copy of the source."""
    env = {**os.environ, "PYTHONPATH": str(source), "HOLDFAST_SOURCE": str(source)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1200)
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest could not run {tests}:\n{done.stdout}{done.stderr}")
    return done.returncode == 0, done.stdout


def main() -> int:
    """Every mutant must be noticed; 1 when one survives."""
    chosen = [m for m in MUTANTS if len(sys.argv) < 2 or sys.argv[1] in m.name]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as folder:
        plain = Path(folder, "plain")
        shutil.copytree(ROOT / "src", plain)
        tests = tuple(sorted({test for mutant in chosen for test in mutant.tests}))
        green, output = run_tests(plain, tests)
        if not green:
            print(output)
            raise SystemExit("the tests are red without any mutant: repair that first")
        print(f"unchanged: green ({len(tests)} selections)", flush=True)
        for number, mutant in enumerate(chosen):
            copy = Path(folder, str(number))
            shutil.copytree(ROOT / "src", copy)
            path = copy / "holdfast" / mutant.file
            text = path.read_text()
            if text.count(mutant.old) != 1:
                raise SystemExit(f"{mutant.name}: {mutant.file} does not contain its text exactly once; update it")
            path.write_text(text.replace(mutant.old, mutant.new))
            begin = time.monotonic()
            green, _ = run_tests(copy, mutant.tests)
            verdict = "SURVIVED" if green else "noticed"
            print(f"{verdict:9} {mutant.name} ({time.monotonic() - begin:.0f} s)", flush=True)
            if green:
                survivors.append(mutant.name)
    print(f"{len(chosen) - len(survivors)} passed, {len(survivors)} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
