"""`make contracts`: write into docs/contracts.md, below every line of the contract, the tests that show it.

A test shows a line when its name begins with it (`test_w4_...`, `test_w5_w6_...`), or when it or its class is marked
with it (`@pytest.mark.contract("K1")`). A check of the contract suite shows the lines its docstring names. The texts of
the lines are written by hand; what comes after `<!-- tests -->` is written here, and a test compares the two.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.testing.contract import CHECKS, contracts

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "contracts.md"
BEGIN = "<!-- tests -->"

#: line -> (issue that builds it, what of it is missing); an empty text is the whole line
NOT_YET: dict[str, tuple[int, str]] = {}

_HEADING = re.compile(r"^### ([A-Z]\d+)$", re.M)
_NAMED = re.compile(r"^test_((?:[a-z]\d+_)+)")


class ContractsError(Exception):
    """The page, the tests and the list of what is missing do not fit together."""


def lines(page: str) -> list[str]:
    """The names of all lines, in order."""
    return _HEADING.findall(page)


def shown(folder: Path) -> dict[str, dict[str, list[str]]]:
    """{line: {file: [test or class of tests]}}, read from the tests' source."""
    found: dict[str, dict[str, list[str]]] = {}
    for file in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for name, cited in _cited(tree.body):
            for line in cited:
                names = found.setdefault(line, {}).setdefault(file.relative_to(folder.parent).as_posix(), [])
                if name not in names:
                    names.append(name)
    return found


def _cited(body: list[ast.stmt]) -> Iterator[tuple[str, list[str]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node.name, _marks(node)
            yield from ((f"{node.name}.{name}", cited) for name, cited in _cited(node.body))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            named = _NAMED.match(node.name)
            yield node.name, [*(named[1].upper().split("_")[:-1] if named else ()), *_marks(node)]


def _marks(node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    calls = [
        d for d in node.decorator_list if isinstance(d, ast.Call) and ast.unparse(d.func) == "pytest.mark.contract"
    ]
    return [ast.literal_eval(argument) for call in calls for argument in call.args]


def checks() -> dict[str, list[str]]:
    """{line: [check of the contract suite]}."""
    found: dict[str, list[str]] = {}
    for name in CHECKS:
        for line in contracts(name):
            found.setdefault(line, []).append(name)
    return found


def generate(page: str, tests: dict[str, dict[str, list[str]]], not_yet: dict[str, tuple[int, str]]) -> str:
    """The page with the tests of today; an error when a line has none, or a test shows a line that is not there."""
    known, suite = lines(page), checks()
    for strange in sorted({*tests, *not_yet} - set(known)):
        where = ", ".join(f"{file}: {', '.join(names)}" for file, names in tests.get(strange, {}).items())
        raise ContractsError(f"{PAGE.name} has no line {strange} ({where or 'NOT_YET'})")
    parts = _HEADING.split(page)
    for number in range(1, len(parts), 2):
        line, text = parts[number], parts[number + 1]
        written, _, rest = text.partition(BEGIN)
        following = rest[rest.index("\n## ") :] if "\n## " in rest else ""
        block = _block(line, tests.get(line, {}), suite.get(line, []), not_yet.get(line))
        parts[number] = f"### {line}"
        parts[number + 1] = f"{written}{BEGIN}\n{block}\n{following}"
        if not following and number + 2 < len(parts):
            parts[number + 1] += "\n"
    return "".join(parts)


def _block(line: str, tests: dict[str, list[str]], suite: list[str], missing: tuple[int, str] | None) -> str:
    rows = [f"- [{file}](../{file}): {', '.join(f'`{name}`' for name in names)}" for file, names in tests.items()]
    if suite:
        rows.append(f"- [contract suite](testing-a-sink.md): {', '.join(f'`{name}`' for name in suite)}")
    if not rows and missing is None:
        raise ContractsError(f"no test shows {line}: name or mark one, or list it in NOT_YET with the issue")
    if rows and missing is not None and not missing[1]:
        raise ContractsError(f"tests show {line} now: take it out of NOT_YET, or say there what is still missing")
    if missing is not None:
        issue, what = missing
        rows.append(f"- not yet{f': {what}' if what else ''} (issue {issue})")
    return "\n".join(rows)


def main() -> int:
    """Write the page."""
    try:
        text = generate(PAGE.read_text(encoding="utf-8"), shown(ROOT / "tests"), NOT_YET)
    except ContractsError as error:
        print(f"contracts: {error}", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"contracts: {len(lines(text))} lines, {len(NOT_YET)} of them not or not wholly shown yet: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
