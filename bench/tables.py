"""`make bench-report`: writes the tables at the end of bench/README.md, the bars in README.md, and a table of the docs.

All of it comes from bench/results/. Nothing there is typed by hand, and tests/unit/test_bench_tables.py fails when the
two differ. All runs are listed, also those that missed a bar. `--check` writes nothing.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.report import Bar, project_version

BEGIN = "<!-- from here on written by `make bench-report`: edit nothing below -->"
#: a page of the docs -> the benchmark that it shows between these two lines
PAGES = {"docs/speed.md": "nexmark", "docs/scale.md": "scale"}
PART, END = "<!-- from here written by `make bench-report` -->", "<!-- to here written by `make bench-report` -->"
#: Benchmarks of which no whole run of a commit of this repository is kept. The page names them, and a test fails when
#: another one has none, or one of these has.
NOT_WHOLE = ("bench-history", "bench-kafka", "bench-nexmark", "bench-scale")
#: how many of the newest whole runs the middle of a bar is of
WHOLE = 3


def results(folder: Path) -> list[dict[str, Any]]:
    """What is kept of each benchmark, by name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def render(folder: Path, targets: Sequence[str]) -> str:
    """The part below the line; a benchmark without a whole run is named, too."""
    kept = {f"bench-{found['benchmark']}": found for found in results(folder)}
    lines: list[str] = []
    for found in kept.values():
        lines += ["", *_section(found)]
    named = [target for target in targets if target in NOT_WHOLE or target not in kept]
    if named:
        lines += ["", "Never run whole, at a commit of this repository:", ""]
        lines += [f"- `make {target}`: {_why_not_whole(kept.get(target))}" for target in named]
    return "\n".join(lines) + "\n"


def _why_not_whole(found: dict[str, Any] | None) -> str:
    if found is None:
        return "no run is kept"
    whole = any(not run["options"] for run in found["runs"])
    return "the code that was measured is not in this repository" if whole else "only told to do less"


def shown(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The run whose table is shown: the newest that was told nothing, else the newest of those with the most bars."""
    plain = [run for run in runs if not run["options"]]
    most = max(len(run["bars"]) for run in runs)
    return (plain or [run for run in runs if len(run["bars"]) == most])[-1]


def missed(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The bars a run missed."""
    return [bar for bar in run["bars"] if not bar["met"]]


def _section(found: dict[str, Any]) -> Iterator[str]:
    runs, run = found["runs"], shown(found["runs"])
    told = " ".join(["`make bench-" + found["benchmark"] + "`", *(f"`{option}`" for option in run["options"])])
    yield f"### {told}"
    yield ""
    yield _where(run)
    yield ""
    yield from _table(run["header"], run["rows"])
    yield ""
    bars = [(bar, _bar(bar)) for bar in run["bars"]]
    lines = [
        (b["what"], f"{b['measured']:.3g} {b['unit']}", bar.bound, _verdict(b), _middle(runs, b["what"]))
        for b, bar in bars
    ]
    yield from _table(("bar", "measured", "allowed", "", f"middle of the last {WHOLE} whole runs"), lines)
    yield ""
    bad = sum(1 for one in runs if missed(one))
    yield f"Runs kept: {len(runs)}, of which {bad} missed a bar."
    yield ""
    yield from _table(("run", "commit", "told", "load", "bars"), [_line(one) for one in reversed(runs)])


def _middle(runs: Sequence[dict[str, Any]], what: str) -> str:
    """Of what was measured for a bar in whole runs; nothing where there are too few."""
    found = [bar["measured"] for run in runs if not run["options"] for bar in run["bars"] if bar["what"] == what]
    return f"{statistics.median(found[-WHOLE:]):.3g}" if len(found) >= WHOLE else ""


def _where(run: dict[str, Any]) -> str:
    machine = run["machine"]
    return (
        f"{_when(run)} UTC, version {run['version']}, commit {run['commit']}, {machine['cores']} cores, "
        f"load {machine['load']}, Python {machine['python']}"
    )


def part(name: str, folder: Path, page: Path) -> str:
    """What a page of the docs shows of a benchmark: its picture if there is one, its table, and the bars it missed."""
    path = folder / f"{name}.json"
    if not path.exists():
        return f"\nNo run of `make bench-{name}` is kept yet.\n\n"
    run = shown(json.loads(path.read_text())["runs"])
    lines = ["", *_table(run["header"], run["rows"]), "", f"{_where(run)}."]
    bad = [f"{bar['what']} {bar['measured']:.3g}, {_bar(bar).bound}" for bar in missed(run)]
    lines.append(f"Bars missed: {'; '.join(bad) or 'none'}.")
    picture = page.parent / "images" / f"{name}.png"
    if picture.exists():
        lines += ["", f"![The same as bars](images/{name}.png)"]
    return "\n".join(lines) + "\n\n"


#: USD for a million requests to S3's standard class in us-east-1, by its price list at the time of writing
PRICES = {"put": 5.0, "get": 0.4, "delete": 0.0}
#: ... and what each subtask of a write-ahead sink adds: its file of the log
A_LOG_FILE = {"put": 1.0, "get": 1.0, "delete": 1.0}
_REQUESTS = "requests a checkpoint, "


def costs(folder: Path) -> str:
    """What a million checkpoints cost at an object store, from the requests that bench-scale counted."""
    run = shown(json.loads((folder / "scale.json").read_text())["runs"])
    lines = []
    for name, counted, *_ in run["rows"]:
        if name.startswith(_REQUESTS):
            requests = {kind: float(count) for count, kind in (one.split() for one in counted.split(", "))}
            more = f", and {_usd(A_LOG_FILE)} for each subtask, by the file of its log" if "write-ahead" in name else ""
            lines.append((name.removeprefix(_REQUESTS), counted, f"{_usd(requests)}{more}"))
    table = _table(("sinks", "requests a checkpoint, as counted", "a million checkpoints"), lines)
    return "\n".join(["", *table, "", f"{_where(run)}.", "", ""])


def _usd(requests: Mapping[str, float]) -> str:
    return f"{sum(count * PRICES[kind] for kind, count in requests.items()):.3g} USD"


def overview(folder: Path, targets: Sequence[str]) -> str:
    """Every bar of each benchmark, met or missed: of its newest whole run, or where there is none, of lesser ones."""
    kept = {f"bench-{found['benchmark']}": found["runs"] for found in results(folder)}
    rows = [
        (
            bar["what"],
            f"{bar['measured']:.3g} {bar['unit']}",
            _bar(bar).bound,
            _verdict(bar),
            f"`make {target}`{_lesser(target, run)}, {_when(run)}",
        )
        for target in targets
        for run, bar in _bars(kept.get(target, []))
    ]
    lines = ["", *_table(("bar", "measured", "allowed", "", "by"), rows)]
    rest = [f"`make {target}`" for target in targets if target in NOT_WHOLE or target not in kept]
    if rest:
        lines += ["", f"Not measured whole on this code yet: {', '.join(rest)}."]
    return "\n".join(lines) + "\n\n"


def _bars(runs: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The bars of the run that is shown; a lesser run may lack some, so each is from the newest that has it."""
    if runs and not shown(runs)["options"]:
        runs = [shown(runs)]
    return list({bar["what"]: (run, bar) for run in runs for bar in run["bars"]}.values())


def _lesser(target: str, run: dict[str, Any]) -> str:
    if target not in NOT_WHOLE:
        return ""
    return ", told to do less" if run["options"] else ", on code that is not in this repository"


def _line(run: dict[str, Any]) -> tuple[str, ...]:
    bars = (f"{b['what']} {b['measured']:.3g} of {b['allowed']:.3g} {b['unit']} {_verdict(b)}" for b in run["bars"])
    return _when(run), run["commit"], " ".join(run["options"]), str(run["machine"]["load"]), "; ".join(bars)


def _bar(kept: dict[str, Any]) -> Bar:
    return Bar(**{name: value for name, value in kept.items() if name != "met"})


def _verdict(bar: dict[str, Any]) -> str:
    return "met" if bar["met"] else "**missed**"


def _when(run: dict[str, Any]) -> str:
    return str(run["at"]).replace("T", " ")[:16]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for line in (header, ["---", *["---:"] * (len(header) - 1)], *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"


# -- what was never run, and how old the rest is --------------------------------------------------------------------


def not_whole(folder: Path, targets: Sequence[str], has: Callable[[str], bool]) -> set[str]:
    """Benchmarks without a whole run of a commit that the repository `has`, the newest run being of one, too."""
    kept = {f"bench-{found['benchmark']}": found["runs"] for found in results(folder)}

    def good(runs: Sequence[dict[str, Any]]) -> bool:
        run = shown(runs)
        return not run["options"] and all(has(str(one["commit"]).rstrip("+")) for one in (run, runs[-1]))

    return {target for target in targets if target not in kept or not good(kept[target])}


def in_history(commit: str) -> bool:
    """Whether this commit is one of those that led to what is checked out."""
    command = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(command, cwd=report.ROOT, capture_output=True, check=False).returncode == 0


def releases(changelog: str) -> list[tuple[int, ...]]:
    """The released versions."""
    return [_parts(text) for text in re.findall(r"^## \[(\d+(?:\.\d+)*)\]", changelog, re.MULTILINE)]


def releases_behind(run: dict[str, Any], changelog: str, version: str) -> int:
    """How many versions came after the one a run measured, the one that is being made included."""
    measured = _parts(run["version"])
    return len({later for later in [*releases(changelog), _parts(version)] if later > measured})


def too_old(folder: Path, changelog: str, version: str) -> list[str]:
    """The benchmarks of which the run that is shown is older than the code by more than a release."""
    return [f["benchmark"] for f in results(folder) if releases_behind(shown(f["runs"]), changelog, version) > 1]


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


# -- the file -------------------------------------------------------------------------------------------------------


def bench_targets() -> list[str]:
    """The benchmarks `make` knows."""
    found = re.findall(r"^(bench-[a-z-]+):", (report.ROOT / "Makefile").read_text(), re.MULTILINE)
    return [target for target in found if target != "bench-report"]


def written(text: str, tables: str) -> str:
    """The README with these tables."""
    head, line, _ = text.partition(BEGIN)
    if not line:
        raise SystemExit(f"bench/README.md has no line {BEGIN!r}: put it where the tables should be")
    return head + BEGIN + "\n" + tables


def with_part(text: str, inner: str) -> str:
    """A page with this between the two lines."""
    head, begin, rest = text.partition(PART)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"a page lacks {PART!r} or, after it, {END!r}: put them where the table should be")
    return head + PART + "\n" + inner + END + tail


def pages() -> dict[Path, str]:
    """All files that are written, as they should be."""
    readme = report.ROOT / "bench" / "README.md"
    found = {readme: written(readme.read_text(), render(report.RESULTS, bench_targets()))}
    front = report.ROOT / "README.md"
    found[front] = with_part(front.read_text(), overview(report.RESULTS, bench_targets()))
    for name, benchmark in PAGES.items():
        page = report.ROOT / name
        inner = costs(report.RESULTS) if benchmark == "scale" else part(benchmark, report.RESULTS, page)
        found[page] = with_part(page.read_text(), inner)
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the tables; with --check say whether they differ."""
    changed = {path: text for path, text in pages().items() if path.read_text() != text}
    for name in too_old(report.RESULTS, (report.ROOT / "CHANGELOG.md").read_text(), project_version()):
        print(f"bench-{name} was last run more than a release ago: run `make bench-{name}`")
    if "--check" in arguments:
        return int(bool(changed))
    for path, text in changed.items():
        path.write_text(text)
        print(f"wrote the tables of {path.relative_to(report.ROOT)}")
    if not changed:
        print("the tables are unchanged")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
