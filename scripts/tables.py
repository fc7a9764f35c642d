"""`make tables`: write the tables of options and of metrics into the docs, from where the code has them.

A page says where with `<!-- options: KafkaSink -->` or `<!-- metrics -->`, and the table ends at `<!-- end -->`. A test
compares the two.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import holdfast as hf
from holdfast.pipeline.help import HELP
from holdfast.pipeline.options import options_of
from holdfast.telemetry.names import METRICS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
_BLOCK = re.compile(r"(<!-- (options|metrics):? ?(\w*) -->\n).*?(<!-- end -->)", re.S)


def options(name: str) -> str:
    """The options of a public class or function."""
    rows = [
        f"| `{option.name}` | {option.takes} | {_marked(option.shown)} | {option.help} |"
        for option in options_of(getattr(hf, name))
    ]
    return "\n".join(["| option | what it may be | default | what it is |", "|---|---|---|---|", *rows])


def _marked(default: str) -> str:
    return default if default in ("", "10 GiB") else f"`{default}`"


def metrics() -> str:
    """All metrics."""
    rows = [f"| `{m.name}` | {m.kind} | {', '.join(f'`{label}`' for label in m.labels)} | {m.help} |" for m in METRICS]
    return "\n".join(["| metric | kind | labels | what it is |", "|---|---|---|---|", *rows])


def generate(page: str) -> str:
    """The page with the tables of today."""

    def table(match: re.Match[str]) -> str:
        made = options(match[3]) if match[2] == "options" else metrics()
        return f"{match[1]}{made}\n{match[4]}"

    return _BLOCK.sub(table, page)


def shown() -> set[str]:
    """Every name whose options a page shows."""
    return {match[3] for page in PAGES for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))} - {""}


def main() -> int:
    """Write the pages."""
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = generate(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"tables: wrote {page.relative_to(ROOT)}")
    missing = set(HELP) - shown()
    if missing:
        print(f"tables: no page shows the options of {', '.join(sorted(missing))}", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
