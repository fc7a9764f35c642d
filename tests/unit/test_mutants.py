"""`make mutants` breaks what is there, and asks tests that are there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.crash.cases import CASES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_each_text_is_there_once(mutants: ModuleType) -> None:
    counts = {m.name: (ROOT / "src" / "holdfast" / m.file).read_text().count(m.old) for m in mutants.MUTANTS}
    assert set(counts.values()) == {1}, counts


def test_each_test_is_there(mutants: ModuleType) -> None:
    cases = {f"{mutants.CRASH}[{case.id}]" for case in CASES if case.always}
    asked = {test for m in mutants.MUTANTS for test in m.tests}
    assert asked - cases == {test for test in asked - cases if (ROOT / test).is_file()}
