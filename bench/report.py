"""What every benchmark prints and writes: a table, the verdict, and JSON in bench/results/."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Bar:
    """One thing that was measured, what is allowed, and whether it held."""

    what: str
    measured: float
    allowed: float
    unit: str
    #: `allowed` is a floor, for what should be large
    floor: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.allowed if self.floor else self.measured <= self.allowed

    def __str__(self) -> str:
        verdict = "ok  " if self.met else "UNDER" if self.floor else "OVER"
        bound = "at least" if self.floor else "at most"
        return f"{verdict} {self.what}: {self.measured:.3g} {self.unit}, {bound} {self.allowed:.3g} {self.unit}"


@dataclass
class Report:
    """Collects the lines of one benchmark."""

    name: str
    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def finish(self) -> int:
        """Print the table and the verdict, write the JSON, and return the exit code."""
        lines = [tuple(self.header), *map(tuple, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            first, *rest = (cell for cell in line)
            cells = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))]
            print("  ".join(cells).rstrip())
        for bar in self.bars:
            print(bar)
        machine = describe_machine()
        print(f"on {machine['cores']} cores, load {machine['load']}, Python {machine['python']}")
        RESULTS.mkdir(exist_ok=True)
        body = {
            "benchmark": self.name,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine,
            "header": list(self.header),
            "rows": [list(row) for row in self.rows],
            "bars": [asdict(bar) | {"met": bar.met} for bar in self.bars],
            "details": self.details,
        }
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(body, indent=2) + "\n")
        print(f"written to {path.relative_to(RESULTS.parent.parent)}")
        return 0 if all(bar.met for bar in self.bars) else 1


def describe_machine() -> dict[str, Any]:
    """Enough to judge the numbers; the load tells whether the machine was busy with something else."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
