"""The docs are tested: commands and options exist, links resolve. tests/integration/test_docs.py runs the snippets."""

import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from scripts import architecture, tables

import holdfast as hf
from holdfast import errors, testing
from holdfast.cli.app import app
from holdfast.core import faults
from holdfast.pipeline.help import HELP
from holdfast.pipeline.options import options_of
from holdfast.testing.contract import CHECKS, contracts

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = ROOT / "README.md"
EXAMPLES = [
    (ROOT / "examples" / name).read_text() for name in ("renamed_files.py", "http_endpoint.py", "upsert_endpoint.py")
]
SINKS = {"renamed_files": "RenamedFiles", "http_endpoint": "HttpEndpoint", "upsert_endpoint": "KeyFiles"}


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.S | re.M)


def text(page):
    return (DOCS / page).read_text()


def slug(heading):
    """The anchor GitHub makes for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_the_guide_shows_the_three_examples_whole():
    shown = "".join(blocks(DOCS / "writing-a-sink.md", "python"))
    for example, name in zip(EXAMPLES, SINKS.values(), strict=True):
        start = example.index(f"class {name}(")
        body = example[start : re.search(r"\n\n\n", example[start:]).start() + start]
        assert body in shown
        assert body.count("\n") + 1 < 40, f"{name} is an example of under 40 lines"


#: options of spark-submit that our pages use, each seen in `spark-submit --help`
SUBMIT = {"--master", "--deploy-mode", "--conf", "--archives", "--py-files"}
#: commands of others that are not there where the tests run: Spark's scripts, and those of an environment to be made
OTHERS = {"$SPARK_HOME/sbin/start-master.sh", "$SPARK_HOME/sbin/start-worker.sh", "python3", "env/bin/venv-pack"}


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.name)
def test_commands_exist(page):
    commands = typer.main.get_command(app).commands
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M)
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for line in (line for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()):
        words = shlex.split(line.partition(" > ")[0], comments=True)
        if not words:
            continue
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            assert name == faults.VARIABLE
            assert faults.parse(value)
        if words[:2] == ["python", "servers.py"]:  # what `holdfast new --compose-free` writes; the rest is run by it
            words = words[2:]
        if words[0] == "holdfast":
            command, rest = commands[words[1]], words[2:]
            while hasattr(command, "commands"):
                command, rest = command.commands[rest[0]], rest[1:]
            command.make_context(command.name, rest)
        elif words[0] == "make":
            assert words[1] in targets
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file() or f"<!-- file: {words[1]} -->" in page.read_text(), line
        elif words[:2] == ["pip", "install"]:
            named = re.findall(r"\[(.*)\]", words[-1])
            assert words[-1].startswith((".", "holdfast", "dist/holdfast")), line
            assert set(",".join(named).split(",")) - {""} <= extras, line
        elif words[0] == "spark-submit":
            assert {word for word in words if word.startswith("--")} <= SUBMIT, line
        elif words[0] not in OTHERS:
            pytest.fail(f"{page.name}: no test knows how to check {line!r}")


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.name)
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            assert anchor in map(slug, headings), f"{page.name}: {target}"


def test_the_site_builds_without_a_broken_link(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in PAGES:
        assert (site / page.relative_to(DOCS).with_suffix("") / "index.html").is_file() or page.name == "index.md"
    # The site is read where there is no network, too: its fonts and scripts are its own.
    found = re.findall(r'<(?:script|link)[^>]*(?:src|href)="(https?://[^"]+)"', (site / "index.html").read_text())
    assert found == []


def test_the_house_is_drawn_as_it_is():
    assert architecture.PAGE.read_text() == architecture.written(), "run `make architecture`"


def test_tables_are_what_the_code_says():
    for page in PAGES:
        assert tables.generate(page.read_text()) == page.read_text(), f"{page.name}: run `make tables`"
    assert tables.shown() == set(HELP)
    for name in HELP:
        assert [option.name for option in options_of(getattr(hf, name)) if not option.help] == [], f"{name}: help.py"


def test_every_page_is_on_the_index():
    for page in PAGES:
        assert page == DOCS / "index.md" or f"({page.relative_to(DOCS).as_posix()})" in text("index.md")


def test_every_public_name_and_option_is_in_the_reference():
    reference = text("reference.md")
    for name in hf.__all__:
        assert re.search(rf"^#+ {name}$", reference, re.M), f"{name} has no section"
        thing = getattr(hf, name)
        if name in ("Outcome", "Tasks", "HoldfastError"):
            continue
        section = re.search(rf"^(#+) {name}\n(.*?)(?=^#|\Z)", reference, re.S | re.M)[2]
        for parameter in inspect.signature(thing).parameters:
            assert re.search(rf"\b{parameter}\b", section), f"{name}: option {parameter}"
    for outcome in hf.Outcome:
        assert f"Outcome.{outcome.name}" in reference
    for name in testing.__all__:
        assert f"`{name}`" in reference


def test_every_method_of_a_sink_is_in_the_reference():
    reference = text("reference.md")
    for base in (hf.TwoPhaseCommitSink, hf.CheckpointCommitter):
        for name in vars(base):
            if not name.startswith("_"):
                assert re.search(rf"`{name}\b", reference), f"{base.__name__}.{name}"


def every_command(group, prefix=""):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def test_every_command_and_option_is_in_the_reference():
    reference = text("reference.md")
    for name, command in every_command(typer.main.get_command(app)):
        row = next(line for line in reference.splitlines() if line.startswith(f"| `holdfast {name}"))
        for parameter in command.params:
            for option in parameter.opts:
                assert option in row or not option.startswith("--"), f"holdfast {name} {option}"


def test_every_error_is_explained():
    page = text("errors.md")
    for name, thing in vars(errors).items():
        if isinstance(thing, type) and issubclass(thing, errors.HoldfastError):
            assert f"| `{name}` | {thing('').action} |" in page, name
    for action in errors.ACTIONS:
        assert re.search(rf"^\| `{action}` \| ", page, re.M), action


def test_every_fault_point_mode_and_check_is_explained():
    page = text("testing-a-sink.md")
    for point, meaning in faults.POINTS.items():
        assert f"| `{point}` | {meaning} |" in page
    for mode in faults.MODES:
        assert f"| `{mode}` |" in page
    for name, check in CHECKS.items():
        sentence = check.__doc__.strip().rsplit(" (", 1)[0]
        assert f"| `{name}` | {sentence} | {', '.join(contracts(name))} |" in page
    for option in inspect.signature(testing.exercise_sink).parameters:
        assert f"`{option}" in page, option
