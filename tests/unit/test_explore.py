"""`make test` draws the same examples each time; `make explore` new ones, and says how to draw them again."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests import explore

ROOT = Path(__file__).resolve().parents[2]
#: A property that does not hold for every seed, in a folder with the conftest of all tests.
PROPERTY = """
from hypothesis import given, strategies as st
@given(st.integers(0, 1 << 60), st.floats(allow_nan=False))
def test_it(number, other):
    with open({path!r}, "a") as file:
        print(number, other, file=file)
    assert {holds}
def test_that_is_not_a_property():
    raise AssertionError
"""


def test_make_test_leaves_nothing_to_chance():
    assert settings.default.derandomize and settings.default.deadline is None


def drawn(tmp_path, seed, holds="True"):
    """What a run with this seed drew, and its process."""
    path = tmp_path / "drawn"
    path.write_text("")
    (tmp_path / "test_sample.py").write_text(PROPERTY.format(path=str(path), holds=holds))
    profile = (ROOT / "tests" / "conftest.py").read_text()
    lines = [line for line in profile.splitlines() if line.startswith(("from hypothesis", "settings."))]
    (tmp_path / "conftest.py").write_text("\n".join(lines))
    command = [*explore.command(seed, ["test_sample.py"]), "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    return path.read_text(), done


def test_a_seed_draws_its_examples_again_and_another_one_others(tmp_path):
    (first, done), (again, _), (other, _) = (drawn(tmp_path, seed) for seed in (1, 1, 2))
    assert done.returncode == 0, done.stdout
    assert first == again != other
    assert "1 passed, 1 deselected" in done.stdout, "property tests only"


@pytest.mark.parametrize(("code", "said"), [(0, "2 rounds found nothing"), (1, "make explore SEED=")])
def test_a_round_that_fails_says_how_to_run_it_again(monkeypatch, capsys, code, said):
    ran = []

    def run(command):
        ran.append(command)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(subprocess, "run", run)
    assert explore.main(["--rounds", "2", "tests/unit"]) == code
    text = capsys.readouterr().out
    assert said in text
    assert len(ran) == (1 if code else 2)
    seeds = re.findall(r"seed (\d+)", text)
    assert ran[0] == explore.command(int(seeds[0]), ["tests/unit"]) and ran[0][0] == sys.executable
    if code:
        assert f'SEED={seeds[0]} TESTS="tests/unit"' in text


def test_a_given_seed_is_one_round(monkeypatch):
    ran = []
    monkeypatch.setattr(subprocess, "run", lambda c: ran.append(c) or subprocess.CompletedProcess(c, 0))
    explore.main(["--seed", "7"])
    assert ran == [explore.command(7, [])]
