"""The tables of bench/README.md are what bench/results says, runs that missed a bar included, and not too old."""

import json

import pytest
from bench import report, tables


@pytest.fixture
def results(tmp_path, monkeypatch):
    folder = tmp_path / "bench" / "results"
    folder.parent.mkdir()
    monkeypatch.setattr(report, "RESULTS", folder)
    return folder


def run_once(measured, options=(), name="sample"):
    bar = report.Bar("speed", measured, 1.5, "times", floor=True, rule="as Spark told alike")
    return report.Report(name, ("what", "ms"), [("a", f"{measured}")], [bar], {"samples": [1]}, options).finish()


def test_the_readme_says_what_the_results_say():
    assert tables.main(["--check"]) == 0, "bench/README.md is not what bench/results says: run `make bench-report`"


def test_no_result_is_older_than_the_code_by_more_than_a_release():
    changelog = (report.ROOT / "CHANGELOG.md").read_text()
    assert tables.too_old(report.RESULTS, changelog, report.project_version()) == []


def test_every_kept_result_belongs_to_a_command():
    names = {f"bench-{found['benchmark']}" for found in tables.results(report.RESULTS)}
    assert names <= set(tables.bench_targets())


def test_a_run_that_missed_its_bar_stays(results):
    assert [run_once(measured) for measured in (1.47, 1.61)] == [1, 0]
    runs = json.loads((results / "sample.json").read_text())["runs"]
    assert [run["bars"][0]["met"] for run in runs] == [False, True]
    text = tables.render(results, ["bench-sample", "bench-other"])
    assert "Runs kept: 2, of which 1 missed a bar." in text
    assert "speed 1.47 of 1.5 times **missed**" in text and "| a | 1.61 |" in text
    assert "at least 1.5 times (as Spark told alike)" in text
    assert "No run is kept of `make bench-other`." in text


def test_a_run_says_when_and_on_what_it_was(results):
    run_once(2.0)
    (run,) = json.loads((results / "sample.json").read_text())["runs"]
    assert run["version"] == report.project_version()
    assert run["commit"].rstrip("+") and run["at"].endswith("Z") and run["machine"]["cores"] > 0
    text = tables.render(results, [])
    for part in (run["commit"], run["version"], run["at"][:10], f"load {run['machine']['load']}"):
        assert part in text


def test_a_short_run_does_not_stand_for_the_whole_one(results):
    run_once(1.6)
    run_once(1.9, ["--rounds", "1"])
    text = tables.render(results, [])
    assert "| a | 1.6 |" in text and "| a | 1.9 |" not in text
    assert "--rounds 1" in text, "but it is listed"


def test_tables_that_were_touched_by_hand_are_noticed(results):
    run_once(1.6)
    text = tables.written(f"# Title\n\n{tables.BEGIN}\nold", tables.render(results, []))
    assert tables.written(text, tables.render(results, [])) == text
    assert tables.written(text.replace("1.6", "1.9"), tables.render(results, [])) == text
    with pytest.raises(SystemExit, match="has no line"):
        tables.written("# Title", "")


@pytest.mark.parametrize(
    ("measured", "released", "now", "behind"),
    [
        ("0.1.0", [], "0.1.0", 0),
        ("0.1.0", ["0.1.0"], "0.2.0", 1),
        ("0.1.0", ["0.1.0", "0.2.0"], "0.2.0", 1),
        ("0.1.0", ["0.1.0", "0.2.0"], "0.3.0", 2),
        ("0.9.0", ["0.9.0", "0.10.0"], "0.11.0", 2),
    ],
)
def test_how_many_releases_a_run_is_behind(results, monkeypatch, measured, released, now, behind):
    monkeypatch.setattr(report, "project_version", lambda: measured)
    run_once(2.0)
    changelog = "## [Unreleased]\n" + "".join(f"## [{version}] - 2026-01-01\n" for version in reversed(released))
    (found,) = tables.results(results)
    assert tables.releases_behind(found["runs"][-1], changelog, now) == behind
    assert tables.too_old(results, changelog, now) == (["sample"] if behind > 1 else [])
