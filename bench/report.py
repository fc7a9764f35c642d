"""What every benchmark prints and keeps: a table, the verdict, and one more run in bench/results/<name>.json.

The files there are in git, and a run stays whether it met its bars or not: `make bench-report` writes the tables of
bench/README.md from them. Single samples go to bench/results/details/, which is not in git.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


@dataclass(frozen=True)
class Bar:
    """One thing that was measured, what is allowed, and whether it held."""

    what: str
    measured: float
    allowed: float
    unit: str
    #: `allowed` is a floor, for what should be large
    floor: bool = False
    #: where `allowed` comes from, if it was measured too: "1.2 times bare plus 20 ms"
    rule: str = ""

    @property
    def met(self) -> bool:
        return self.measured >= self.allowed if self.floor else self.measured <= self.allowed

    @property
    def bound(self) -> str:
        """What is allowed, in words."""
        text = f"{'at least' if self.floor else 'at most'} {self.allowed:.3g} {self.unit}"
        return f"{text} ({self.rule})" if self.rule else text

    def __str__(self) -> str:
        verdict = "ok  " if self.met else "UNDER" if self.floor else "OVER"
        return f"{verdict} {self.what}: {self.measured:.3g} {self.unit}, {self.bound}"


@dataclass
class Report:
    """Collects the lines of one benchmark."""

    name: str
    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    #: what the command was told; a run that was told nothing is the one that others compare with
    options: Sequence[str] = field(default_factory=lambda: sys.argv[1:])
    #: the figures of every round, kept with the run
    rounds: dict[str, Any] = field(default_factory=dict)

    def finish(self) -> int:
        """Print the table and the verdict, add the run to the others, and return the exit code."""
        lines = [tuple(self.header), *map(tuple, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            first, *rest = (cell for cell in line)
            cells = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))]
            print("  ".join(cells).rstrip())
        for bar in self.bars:
            print(bar)
        run = self._run()
        machine = run["machine"]
        print(f"on {machine['cores']} cores, load {machine['load']}, Python {machine['python']}")
        path = keep(self.name, run)
        details = path.parent / "details" / path.name
        details.parent.mkdir(exist_ok=True)
        details.write_text(json.dumps({**run, "details": self.details}, indent=2) + "\n")
        print(f"added to {path.relative_to(path.parents[2])}; `make bench-report` puts it into bench/README.md")
        return 0 if all(bar.met for bar in self.bars) else 1

    def _run(self) -> dict[str, Any]:
        return {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": project_version(),
            "commit": commit(),
            "options": list(self.options),
            "machine": describe_machine(),
            "header": list(self.header),
            "rows": [list(row) for row in self.rows],
            "bars": [asdict(bar) | {"met": bar.met} for bar in self.bars],
            **({"rounds": self.rounds} if self.rounds else {}),
        }


def keep(name: str, run: dict[str, Any]) -> Path:
    """Add a run to those that are kept; none is ever replaced."""
    path = RESULTS / f"{name}.json"
    RESULTS.mkdir(exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {"benchmark": name, "runs": []}
    kept["runs"].append(run)
    path.write_text(json.dumps(kept, indent=2) + "\n")
    return path


def project_version() -> str:
    """The version that is being made."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return found


def commit() -> str:
    """The commit that is measured, with a plus when the source has changes that are in none."""
    head = _git("rev-parse", "--short=9", "HEAD")
    changed = _git("status", "--porcelain", "--", "src", "bench/*.py")
    return f"{head}+" if changed else head


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def describe_machine() -> dict[str, Any]:
    """Enough to judge the numbers; the load tells whether the machine was busy with something else."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
