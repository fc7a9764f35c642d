"""`make matrix` can be cut off and goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.crash import matrix
from tests.crash.cases import SUITES
from tests.crash.harness import ROOT, Work
from tests.crash.scenarios import Case


def hold(work: Work) -> None:
    (work.folder / "run-1.log").write_text("fine")


def break_(work: Work) -> None:
    (work.folder / "run-1.log").write_text("what the driver said")
    raise AssertionError("rows are missing")


def stumble(work: Work) -> None:
    raise OSError("no such server")


def case(way: str, scenario: object, sink: str = "sqlite") -> Case:
    return Case(1, "in the middle of a task", sink, way, scenario)  # type: ignore[arg-type]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "matrix.jsonl"


def run(cases: list[Case], results: Path | None, seconds: float = 1e9) -> matrix.Results:
    noted = matrix.Results(results)
    servers = matrix.Servers(Path("/nonexistent"))
    matrix.run_all([c for c in cases if not noted.passed(c)], servers, noted, seconds)
    return noted


def test_each_outcome_is_noted_with_its_seconds_and_commit(results: Path) -> None:
    run([case("kill", hold), case("error", break_)], results)
    good, bad = map(json.loads, results.read_text().splitlines())
    assert (good["id"], good["ok"], bad["id"], bad["ok"]) == ("01-sqlite-kill", True, "01-sqlite-error", False)
    assert bad["error"] == "rows are missing" and "error" not in good
    assert good["seconds"] >= 0 and good["commit"] == matrix.commit_of_source() and good["at"] > "2026"


def test_what_has_passed_is_not_run_again_and_what_failed_is(results: Path) -> None:
    run([case("kill", hold), case("error", break_)], results)
    again = run([case("kill", break_), case("error", hold)], results)
    assert again.passed(case("kill", hold)) and again.passed(case("error", hold))
    assert [json.loads(line)["id"] for line in results.read_text().splitlines()][2:] == ["01-sqlite-error"]


def test_what_a_failed_case_left_is_kept(results: Path) -> None:
    run([case("kill", hold), case("error", break_)], results)
    kept = results.with_name("matrix.jsonl.failed")
    assert (kept / "01-sqlite-error" / "run-1.log").read_text() == "what the driver said"
    assert not (kept / "01-sqlite-kill").exists()


def test_an_error_nobody_thought_of_fails_its_case_and_no_other(results: Path) -> None:
    noted = run([case("lost", stumble), case("kill", hold)], results)
    assert "OSError: no such server" in noted.last["01-sqlite-lost"]["error"]
    assert noted.passed(case("kill", hold))


def test_after_its_minutes_no_case_is_begun(results: Path) -> None:
    assert run([case("kill", hold)], results, seconds=-1).last == {}


def test_cases_are_chosen_by_sink_in_that_order() -> None:
    cases = [case("kill", hold), case("kill", hold, "files"), case("lost", hold, "files")]
    assert [c.id for c in matrix.choose(cases, "", ["files", "sqlite"])] == [
        "01-files-kill", "01-files-lost", "01-sqlite-kill",
    ]  # fmt: skip
    assert [c.id for c in matrix.choose(cases, "kill", [])] == ["01-sqlite-kill", "01-files-kill"]
    with pytest.raises(SystemExit):
        matrix.arguments(["--sinks", "fils"])


@pytest.mark.parametrize(
    ("suite", "page"),
    [
        ("cluster", "docs/deploy/overview.md"),
        ("s3", "docs/deploy/overview.md"),
        ("clouds", "docs/deploy/overview.md"),
        ("doors", "docs/spark-doors.md"),
    ],
)
def test_what_the_docs_say_of_a_long_run_is_what_its_kept_results_say(suite: str, page: str) -> None:
    cases = SUITES[suite][0]
    noted = matrix.Results(matrix.KEPT / f"{suite}.jsonl")
    passed = sum(map(noted.passed, cases))
    failed = [case.id for case in cases if case.id in noted.last and not noted.passed(case)]
    told = next(line for line in (ROOT / page).read_text().splitlines() if f"results/{suite}.jsonl" in line)
    assert f"{passed} of its {len(cases)} cases" in told
    assert all(f"`{name}`" in told for name in failed), "a case that failed is told by its name"
