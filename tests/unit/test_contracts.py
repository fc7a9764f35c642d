"""docs/contracts.md and the tests that show its lines do not drift apart."""

from __future__ import annotations

import pytest
from scripts import contracts

PAGE = "# Page\n\n## W\n\n### W1\n\nOne.\n\n<!-- tests -->\n- old\n\n## R\n\n### R4\n\nTwo.\n\n<!-- tests -->\n"


def test_the_page_names_the_tests_there_are() -> None:
    page = contracts.PAGE.read_text(encoding="utf-8")
    made = contracts.generate(page, contracts.shown(contracts.ROOT / "tests"), contracts.NOT_YET)
    assert made == page, "run `make contracts`"


def test_tests_are_found_by_their_names_and_marks(tmp_path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_x.py").write_text(
        "@pytest.mark.contract('K1', 'K2')\nclass TestStart:\n    def test_t1_in_a_class(self): ...\n\n"
        "def test_w5_w6_both(): ...\n\n@pytest.mark.contract('W5')\ndef test_marked(): ...\n\ndef test_other(): ...\n"
    )
    file = "tests/test_x.py"
    assert contracts.shown(folder) == {
        "K1": {file: ["TestStart"]},
        "K2": {file: ["TestStart"]},
        "T1": {file: ["TestStart.test_t1_in_a_class"]},
        "W5": {file: ["test_w5_w6_both", "test_marked"]},
        "W6": {file: ["test_w5_w6_both"]},
    }


def test_what_is_written_by_hand_stays_and_the_rest_is_made_anew(monkeypatch) -> None:
    monkeypatch.setattr(contracts, "checks", lambda: {"W1": ["some_check"]})
    page = contracts.generate(PAGE, {"W1": {"tests/a.py": ["test_a"]}}, {"R4": (17, "")})
    assert "One.\n\n<!-- tests -->\n- [tests/a.py](../tests/a.py): `test_a`\n- [contract suite]" in page
    assert "Two.\n\n<!-- tests -->\n- not yet (issue 17)\n" in page
    assert "- old" not in page
    assert contracts.generate(page, {"W1": {"tests/a.py": ["test_a"]}}, {"R4": (17, "")}) == page


@pytest.mark.parametrize(
    ("tests", "not_yet", "message"),
    [
        ({}, {"R4": (17, "")}, "no test shows W1"),
        ({"W1": {"t.py": ["test_a"]}, "R4": {"t.py": ["test_b"]}}, {"R4": (17, "")}, "tests show R4 now"),
        ({"W9": {"t.py": ["test_a"]}}, {}, r"no line W9 \(t.py: test_a\)"),
        ({}, {"X1": (17, "")}, "no line X1"),
    ],
)
def test_a_line_without_a_test_or_a_test_without_a_line_is_an_error(monkeypatch, tests, not_yet, message) -> None:
    monkeypatch.setattr(contracts, "checks", dict)
    with pytest.raises(contracts.ContractsError, match=message):
        contracts.generate(PAGE, tests, not_yet)
