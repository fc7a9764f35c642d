"""`make mutants` breaks what is there, and asks tests that are there."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.crash.cases import CASES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module("mutants")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def test_each_text_is_there_once(mutants: ModuleType) -> None:
    found = {m.name: len(mutants.find(ROOT / "src", m)) for m in mutants.MUTANTS}
    assert {name: times for name, times in found.items() if times != 1} == {}


def test_each_mutant_is_still_python_and_another_text(mutants: ModuleType, tmp_path: Path) -> None:
    for number, mutant in enumerate(mutants.MUTANTS):
        copy = tmp_path / str(number)
        (file, _), *_ = mutants.find(ROOT / "src", mutant)
        target = copy / file.relative_to(ROOT / "src")
        target.parent.mkdir(parents=True)
        target.write_text(file.read_text())
        mutants.apply(copy, mutant)
        assert target.read_text() != file.read_text(), mutant.name
        compile(target.read_text(), str(target), "exec")


def test_each_test_is_there(mutants: ModuleType) -> None:
    cases = {f"{importlib.import_module('mutant').CRASH}[{case.id}]" for case in CASES if case.always}
    asked = {test for m in mutants.MUTANTS for test in m.tests}
    assert asked - cases == {test for test in asked - cases if (ROOT / test.partition("::")[0]).is_file()}


def test_every_sink_and_every_way_out_has_mutants(mutants: ModuleType) -> None:
    names = " ".join(m.name for m in mutants.MUTANTS)
    for word in (
        "SQLite",
        "write-ahead",
        "Kafka",
        "PostgreSQL",
        "Cassandra",
        "files",
        "repair",
        "take-over",
        "resolve",
        "committers",
        "routes",
        "dead letters",
        "floor",
    ):
        assert f"{word}:" in names or f"{word} " in names, word
