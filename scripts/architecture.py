"""`make architecture`: draw the code layout into docs/architecture.md, from imports and the first lines of its files.

The text around the drawings is written by hand; what is between the marks is written here, and a test compares the two.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src"
PACKAGE = "holdfast"


def rooms(graph: grimp.ImportGraph) -> list[str]:
    """The packages one level below the top; everything may import `errors`, which is none."""
    return sorted(module.rpartition(".")[2] for module in graph.find_children(PACKAGE) if graph.find_children(module))


def drawing(graph: grimp.ImportGraph) -> str:
    """Which room imports which; an arrow that follows from two others is left out."""
    found = rooms(graph)
    below = {
        room: {
            imported.split(".")[1]
            for module in {f"{PACKAGE}.{room}", *graph.find_descendants(f"{PACKAGE}.{room}")}
            for imported in graph.find_modules_directly_imported_by(module)
            if imported.count(".") and imported.split(".")[1] in found
        }
        - {room}
        for room in found
    }
    lines = ["```mermaid", "flowchart TD"]
    for room in found:
        through = {far for near in below[room] for far in _reached(near, below)}
        lines += [f"    {room} --> {near}" for near in sorted(below[room] - through)]
    return "\n".join([*lines, "```"])


def _reached(room: str, below: dict[str, set[str]]) -> set[str]:
    """All rooms below one, by whatever way; imports have no circles, import-linter sees to that."""
    return below[room] | {far for near in below[room] for far in _reached(near, below)}


def tables(graph: grimp.ImportGraph) -> str:
    """Every file with the first sentence that it says about itself."""
    parts = []
    for room in rooms(graph):
        folder = SOURCE / PACKAGE / room
        parts.append(f"### {room}\n\n{_says(folder / '__init__.py')}\n\n| file | what it holds |\n|---|---|")
        for file in sorted(folder.rglob("*.py")):
            if file.name != "__init__.py":
                parts.append(f"| `{file.relative_to(folder).as_posix()}` | {_says(file)} |")
        parts.append("")
    return "\n".join(parts).replace("|\n|---|---|\n\n", "|\n|---|---|\n").rstrip()


def _says(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    sentence = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return re.sub(r"(?<!\\)\|", r"\\|", sentence)


def written() -> str:
    """The page as it should be."""
    graph = grimp.build_graph(PACKAGE)
    page = PAGE.read_text(encoding="utf-8")
    for name, text in (("drawing", drawing(graph)), ("files", tables(graph))):
        before, begin, rest = page.partition(f"<!-- {name}:begin -->")
        _, end, after = rest.partition(f"<!-- {name}:end -->")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def main() -> int:
    """Write the page."""
    PAGE.write_text(written(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
