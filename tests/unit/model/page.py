"""`python -m tests.unit.model.page`: write into docs/how-it-works.md what the model explores, and what it finds.

The worlds and the rules are those of `scenarios.py`. How many executions a world has is counted by the tests; they
compare it with the table, and this keeps what the table says of a world that it knows. `--count` explores all anew.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from .explore import ONE, Bounds, explore
from .rules import ALL
from .scenarios import MISSED, SOUND

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-it-works.md"
_PART = "<!-- model {}:{} -->"


def kinds() -> tuple[int, int, int]:
    """How many worlds are explored for every single deviation, for some kinds of them, and for pairs."""
    pairs = sum(scenario.bounds.deviations > 1 for scenario in SOUND.values())
    single = sum(scenario.bounds == ONE for scenario in SOUND.values())
    return single, len(SOUND) - single - pairs, pairs


def counted(page: str) -> dict[str, int]:
    """Executions of each world, as the page says."""
    return {name: int(number) for name, number in re.findall(r"^\| ([^|]+) \| [^|]+ \| (\d+) \|$", page, re.M)}


def worlds(executions: dict[str, int]) -> str:
    """What is explored with all rules on."""
    single, some, pairs = kinds()
    total = round(sum(executions[name] for name in SOUND), -2)
    lines = [
        f"With all rules on, {len(SOUND)} worlds are explored: {single} for every single deviation at every point,\n"
        f"{some} for single deviations of some kinds, {pairs} for pairs of some kinds at some points; about {total:,} "
        "executions in all.",
        "",
        "| world | explored | executions |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {_bounds(scenario.bounds)} | {executions[name]} |" for name, scenario in SOUND.items()]
    return "\n".join(lines)


def _bounds(bounds: Bounds) -> str:
    many = "pairs" if bounds.deviations > 1 else "single"
    which = ", ".join(sorted(bounds.kinds)) or "all"
    return f"{many}: {which}{', at some points' if bounds.at else ''}"


def rules_off() -> str:
    """Which violation is found without which rule."""
    found: dict[str, list[str]] = {}
    for missed in MISSED:
        violations = found.setdefault(missed.rules.name, [])
        violations += [missed.violation] * (missed.violation not in violations)
    lines = ["| rule off | as | what the model finds |", "|---|---|---|"]
    for name, violations in found.items():
        number, _, how = name.partition(": ")
        lines.append(f"| {number} | {how} | {', '.join(violations)} |")
    return "\n".join(lines)


def written(page: str, executions: dict[str, int]) -> str:
    """The page with what is explored today."""
    for name, text in (("worlds", worlds(executions)), ("rules", rules_off())):
        begin, end = _PART.format(name, "begin"), _PART.format(name, "end")
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    return page


def main() -> int:
    """Write the page."""
    page = PAGE.read_text(encoding="utf-8")
    known = {} if "--count" in sys.argv else counted(page)
    executions = {
        name: known.get(name) or explore(scenario.setup, ALL, scenario.bounds).executions
        for name, scenario in SOUND.items()
    }
    PAGE.write_text(written(page, executions), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
