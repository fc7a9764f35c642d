"""What the docs quote as a message (a log line, an error, a word of `status`) is said by the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.unit.test_docs import DOCS, PAGES, README, ROOT

#: quoted for another reason: SQL, the type of a column, the words of other programs
NOT_OURS = {
    "FOR ALL TABLES",
    "FOR TABLES IN SCHEMA public",
    "REPLICA IDENTITY FULL",
    "interval day to second",
}
#: in the docs, what stands for a part that differs: `...`, a number, a name in capitals
_DIFFERS = re.compile(r"\.\.\.|\b\d+\b|\b[A-Z]\b|\([A-Z_]+\)")
_FORMATTED = re.compile(r"%[-.\d]*[a-z]")


def quoted(text: str) -> list[str]:
    """Code spans of three words and more that are a sentence or a part of one, and no command, option or SQL."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    spans = [span for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose) if "\n" not in span]
    words = re.compile(r"[A-Za-z][\w'-]*[:,.]?|\d+[:,.]?|\.\.\.[:,.]?|\([A-Z_]+\)")
    return [
        span
        for span in spans
        if len(span.split()) > 2
        and all(words.fullmatch(word) for word in span.split())
        and span.split()[0] not in ("holdfast", "make", "RUN", "import", "SELECT", "CREATE", "ALTER", "GRANT")
        and span not in NOT_OURS
    ]


def fragments(message: str) -> list[str]:
    """The parts of a message that are always the same."""
    parts = [part.strip(" :,.") for part in _DIFFERS.split(message)]
    return [part for part in parts if part]


@cache
def said() -> tuple[str, ...]:
    """Every text in the code, cut where something is put in."""
    found: list[str] = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += _FORMATTED.split(node.value)
    return tuple(found)


def missing(message: str) -> list[str]:
    """The parts of a message that the code does not say."""
    return [part for part in fragments(message) if not any(part in text for text in said())]


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.name)
def test_a_message_that_the_docs_quote_is_one_that_the_code_says(page: Path) -> None:
    for message in quoted(page.read_text(encoding="utf-8")):
        assert missing(message) == [], f"{page.name} quotes `{message}`"


def test_a_message_that_nobody_says_is_noticed() -> None:
    found = quoted("the log has `checkpoint 7 stays pending for sink ...` and `too few replicas are alive` then")
    assert [missing(message) for message in found] == [["stays pending for sink"], []]
    assert quoted("`holdfast status LOCATION` of `id bigint` and `hf.route(sink, reject=1)`") == []
    pages = " ".join((DOCS / page).read_text() for page in ("kafka.md", "cassandra.md", "operations.md"))
    assert len(quoted(pages)) > 8, "these pages quote what is logged when something fails"
