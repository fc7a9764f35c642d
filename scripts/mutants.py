"""`make mutants`: a suite that cannot fail is worth nothing.

Switches off, one at a time, what the guarantee rests on (the fence, the ledger, the fsync, the decision, ...) in a copy
of the source, and requires the tests to go red. The same tests must be green on an unchanged copy first. With
`--results FILE` outcomes are noted in a file, and what was noticed before is not tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutant import Mutant
from mutant_list import MUTANTS

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


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser("scripts/mutants.py", description=__doc__)
    parser.add_argument("part", nargs="*", help="only mutants whose name contains one of these")
    parser.add_argument("--results", type=Path, metavar="FILE", help="note outcomes here; skip what was noticed")
    return parser.parse_args()


def noticed_before(results: Path | None) -> set[str]:
    """Mutants whose last line in the file says so."""
    lines = results.read_text().splitlines() if results and results.exists() else []
    last = {line["name"]: line["noticed"] for line in map(json.loads, lines)}
    return {name for name, noticed in last.items() if noticed}


def main() -> int:
    """Every mutant must be noticed; 1 when one survives."""
    options = arguments()
    before = noticed_before(options.results)
    wanted = [m for m in MUTANTS if not options.part or any(part in m.name for part in options.part)]
    chosen = [m for m in wanted if m.name not in before]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as folder:
        plain = Path(folder, "plain")
        shutil.copytree(ROOT / "src", plain)
        green_before: set[tuple[str, ...]] = set()
        for number, mutant in enumerate(chosen):
            if mutant.tests not in green_before:
                green, output = run_tests(plain, mutant.tests)
                if not green:
                    print(output)
                    raise SystemExit(f"{mutant.tests} are red without any mutant: repair that first")
                green_before.add(mutant.tests)
            copy = Path(folder, str(number))
            shutil.copytree(ROOT / "src", copy)
            apply(copy, mutant)
            begin = time.monotonic()
            green, _ = run_tests(copy, mutant.tests)
            verdict, took = "SURVIVED" if green else "noticed", time.monotonic() - begin
            print(f"{verdict:9} {mutant.name} ({took:.0f} s)", flush=True)
            if green:
                survivors.append(mutant.name)
            if options.results:
                with options.results.open("a") as file:
                    line = {"name": mutant.name, "noticed": not green, "seconds": round(took, 1)}
                    file.write(json.dumps(line) + "\n")
    print(f"{len(wanted) - len(survivors)} noticed ({len(wanted) - len(chosen)} of them before), {len(survivors)} not")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
