"""`make mutants`: a suite that cannot fail is worth nothing.

Switches off, one at a time, what the guarantee rests on (the fence, the ledger, the fsync, the decision, ...) in a copy
of the source, and requires the tests to go red. The same tests must be green on an unchanged copy first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]


def find(folder: Path, mutant: Mutant) -> list[tuple[Path, re.Match[str]]]:
    """Where in a copy of the source its text is; it must be one place."""
    pattern = re.compile(r"\n([ ]*)".join(map(re.escape, mutant.old.split("\n "))))
    files = sorted((folder / "holdfast").glob(mutant.file))
    return [(file, match) for file in files for match in pattern.finditer(file.read_text())]


def apply(folder: Path, mutant: Mutant) -> None:
    """Break a copy of the source."""
    found = find(folder, mutant)
    if len(found) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.file} holds its text {len(found)} times, not once; update it")
    file, match = found[0]
    text = file.read_text()
    new = mutant.new
    if match.lastindex:
        new = new.replace("\n ", "\n" + match[1])
    file.write_text(text[: match.start()] + new + text[match.end() :])


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
            apply(copy, mutant)
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
