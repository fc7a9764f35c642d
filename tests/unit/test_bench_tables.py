"""The tables of bench/README.md are what bench/results says, runs that missed a bar included, and not too old."""

import json
import subprocess

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


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=report.ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def test_every_benchmark_has_a_whole_run_of_this_code_or_is_named_as_one_without():
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("this is no repository with its history")
    found = tables.not_whole(report.RESULTS, tables.bench_targets(), tables.in_history)
    assert found == set(tables.NOT_WHOLE), "run what is missing, or mend NOT_WHOLE in bench/tables.py and the page"


def test_a_benchmark_without_a_whole_run_of_a_known_commit_is_noticed(results):
    assert tables.not_whole(results, ["bench-sample"], lambda commit: True) == {"bench-sample"}
    run_once(1.6, ["--rounds", "1"])
    assert tables.not_whole(results, ["bench-sample"], lambda commit: True) == {"bench-sample"}
    assert "`make bench-sample`: " not in tables.render(results, ["bench-sample"]), "named only if it is in the list"
    run_once(1.6)
    assert tables.not_whole(results, ["bench-sample"], lambda commit: True) == set()
    assert tables.not_whole(results, ["bench-sample"], lambda commit: False) == {"bench-sample"}
    assert tables.in_history("HEAD") and not tables.in_history("0" * 9)


def test_the_front_page_has_every_bar_also_one_that_was_missed(results, monkeypatch):
    run_once(1.2, name="slow")
    run_once(1.6, ["--rounds", "1"], name="short")
    monkeypatch.setattr(tables, "NOT_WHOLE", ("bench-short",))
    text = tables.overview(results, ["bench-slow", "bench-short", "bench-none"])
    assert "| speed | 1.2 times | at least 1.5 times (as Spark told alike) | **missed** | `make bench-slow`, " in text
    assert (
        "| 1.6 times | at least 1.5 times (as Spark told alike) | met | `make bench-short`, told to do less, " in text
    )
    assert "on this code yet: `make bench-short`, `make bench-none`." in text


def test_the_page_names_what_was_never_run_whole(results, monkeypatch):
    run_once(1.6, ["--rounds", "1"], name="short")
    run_once(1.6, name="lost")
    monkeypatch.setattr(tables, "NOT_WHOLE", ("bench-short", "bench-lost", "bench-none"))
    text = tables.render(results, ["bench-short", "bench-lost", "bench-none"])
    assert "- `make bench-short`: only told to do less" in text and "- `make bench-none`: no run is kept" in text
    assert "- `make bench-lost`: the code that was measured is not in this repository" in text


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
    assert "- `make bench-other`: no run is kept" in text


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


def test_a_short_run_does_not_make_an_old_table_new(results, monkeypatch):
    monkeypatch.setattr(report, "project_version", lambda: "0.1.0")
    run_once(2.0)
    monkeypatch.setattr(report, "project_version", lambda: "0.3.0")
    run_once(2.0, ["--rounds", "1"])
    changelog = "## [0.3.0] - 2026-01-03\n## [0.2.0] - 2026-01-02\n## [0.1.0] - 2026-01-01\n"
    assert tables.too_old(results, changelog, "0.3.0") == ["sample"]
    run_once(2.0)
    assert tables.too_old(results, changelog, "0.3.0") == []


def test_the_middle_of_the_last_three_whole_runs_is_beside_a_bar(results):
    for measured in (9.0, 1.4, 1.9):
        run_once(measured)
    run_once(7.0, ["--rounds", "1"])
    assert "| met | 1.9 |" in tables.render(results, [])
    run_once(1.6)
    assert "| met | 1.6 |" in tables.render(results, [])
    assert len([line for line in tables.render(results, []).splitlines() if line.startswith("| 20")]) == 5, "all runs"


def test_what_a_million_checkpoints_cost_follows_from_counted_requests(results):
    rows = [
        ("1 sink, 10 subtasks each", "9 ms", ""),
        ("requests a checkpoint, one write-ahead sink", "2.0 get, 4.0 put", ""),
    ]
    report.Report("scale", ("driver", "local", "store"), rows, [], {}, ()).finish()
    text = tables.costs(results)
    assert "| one write-ahead sink | 2.0 get, 4.0 put | 20.8 USD, and 5.4 USD for each subtask" in text
    assert "1 sink" not in text


def test_a_run_of_a_part_hides_no_bar_that_an_earlier_one_missed(results, monkeypatch):
    run_once(1.2, ["--rounds", "1"], name="short")
    bar = report.Bar("latency", 90.0, 100.0, "ms", rule="")
    report.Report("short", ("what", "ms"), [("a", "1")], [bar], {}, ["--no-all"]).finish()
    monkeypatch.setattr(tables, "NOT_WHOLE", ("bench-short",))
    text = tables.overview(results, ["bench-short"])
    assert "| speed | 1.2 times |" in text and "**missed**" in text and "| latency | 90 ms |" in text
