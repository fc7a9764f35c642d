"""The benchmarks run, judge their bars, and the lock holds what the project asks for."""

import json
import os
import re
import tomllib
from pathlib import Path

import pytest
from bench import history, memory, report
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(tmp_path, monkeypatch):
    folder = tmp_path / "bench" / "results"
    folder.parent.mkdir()
    monkeypatch.setattr(report, "RESULTS", folder)
    return folder


@pytest.mark.parametrize(("measured", "code"), [(1.0, 0), (1.5, 0), (1.51, 1)])
def test_a_benchmark_over_its_bar_fails(results, capsys, measured, code):
    made = report.Report("sample", ("what", "ms"), [("a", "1")], [report.Bar("a", measured, 1.5, "times")])
    assert made.finish() == code
    assert ("OVER" in capsys.readouterr().out) is bool(code)
    assert json.loads((results / "sample.json").read_text())["runs"][0]["bars"][0]["met"] is not bool(code)


def test_the_history_benchmark_measures_both_sizes(results, capsys):
    history.main(["--small", "12", "--large", "130", "--rounds", "2", "--few", "3", "--many", "110"])
    saved = json.loads((results / "details" / "history.json").read_text())
    assert {name: len(found) for name, found in saved["details"]["samples"].items()} == {"small": 2, "large": 2}
    assert "after 130" in capsys.readouterr().out


def test_the_memory_benchmark_reads_a_process_and_survives_its_end():
    now, high = memory.memory_of(os.getpid())
    assert 1 < now <= high
    assert memory.memory_of(2**22 + 1) == (0.0, 0.0)


def test_the_lock_pins_all_that_the_project_names():
    lines = (ROOT / "requirements.lock").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.+]+", line) for line in lines)
    pinned = dict(line.split("==") for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for group in project.get("optional-dependencies", {}).values() for line in group]
    tools = (ROOT / "requirements-dev.txt").read_text().splitlines()
    for line in [*project["dependencies"], *extras, *tools]:
        if line.startswith(("#", "holdfast")) or not line:
            continue
        wanted = Requirement(line)
        version = pinned.get(canonicalize_name(wanted.name))
        assert version is not None and version in wanted.specifier, f"{line}: run .venv/bin/python scripts/lock.py"
