"""`make compat` covers what pyproject.toml allows, and README.md says what ran."""

from __future__ import annotations

import re
import tomllib

import pytest
from bench.tables import in_history
from packaging.requirements import Requirement
from scripts import compat


def test_each_spark_that_may_be_installed_has_a_version_that_is_tested() -> None:
    project = tomllib.loads((compat.ROOT / "pyproject.toml").read_text())["project"]
    allowed = next(r for r in map(Requirement, project["dependencies"]) if r.name == "pyspark").specifier
    assert all(version in allowed for version in compat.VERSIONS)
    minors = [f"4.{n}" for n in range(20) if f"4.{n}.0" in allowed]
    assert [version.rpartition(".")[0] for version in compat.VERSIONS] == minors


def test_r5_the_table_in_the_readme_has_every_part_on_each_of_these_versions_and_no_others() -> None:
    text = compat.README.read_text(encoding="utf-8")
    table = text[text.index(compat.BEGIN) : text.index(compat.END)]
    assert set(re.findall(r"^\| (\d+\.\d+\.\d+) \|", table, re.M)) == set(compat.VERSIONS), "run `make compat`"
    assert compat.NOT_RUN not in table and "failed" not in table, "run `make compat`"
    for line in table.splitlines()[3:]:
        for cell in line[2:-2].split(" | ")[1:-1]:
            ran_on = cell.rpartition(", ")[2]
            assert in_history(ran_on), f"{cell}: not at a commit of this repository: run `make compat`"


def test_every_test_of_a_part_is_there() -> None:
    for tests in compat.PARTS.values():
        for file in tests:
            assert (compat.ROOT / file.partition("::")[0]).is_file(), file


def test_what_a_part_said_is_written_and_all_else_stays() -> None:
    first, second, *rest = compat.PARTS
    text = f"before\n{compat.BEGIN}\n{compat.END}\nafter"
    text = compat.table(text, "4.9.9", first, "3 passed", "2026-11-17")
    text = compat.table(text, "4.8.1", second, "4 passed", "2026-11-18")
    text = compat.table(text, "4.9.9", second, "1 failed, 5 passed", "2026-11-19")
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert lines[2].startswith(f"| Spark | {first} | {second} |")
    others = " | ".join([compat.NOT_RUN] * len(rest))
    assert lines[4:-2] == [
        f"| 4.8.1 | {compat.NOT_RUN} | 4 passed | {others} | 2026-11-18 |",
        f"| 4.9.9 | 3 passed | 1 failed, 5 passed | {others} | 2026-11-19 |",
    ]


@pytest.mark.parametrize(
    "line", ["3 passed in 4.20s", "== 1 failed, 3 passed in 4.20s ==", "3 passed in 64.20s (0:01:04)"]
)
def test_the_last_line_of_pytest_is_read(line: str) -> None:
    assert compat.summary(f"...\n{line}\n").endswith("3 passed")
