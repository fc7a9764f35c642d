"""The docs are tested: commands and options exist, links resolve. tests/integration/test_docs.py runs the snippets."""

import ast
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
import yaml
from scripts import architecture, tables

import holdfast as hf
from holdfast import errors, testing
from holdfast.cli.app import app
from holdfast.core import faults
from holdfast.pipeline.help import HELP
from holdfast.pipeline.options import options_of
from holdfast.pipeline.problems import read_job
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


#: What looks at a snippet: `test_commands_exist` at bash, tests/integration/test_docs.py at python and py (it runs
#: them), the test below at yaml, tests/integration/test_postgres_docs.py at sql (it asks a server), test_states.py and
#: `test_the_house_is_drawn_as_it_is` at mermaid. The rest are words of other programs.
LANGUAGES = {"bash", "python", "py", "yaml", "sql", "mermaid", "shell", "ini", "java", "dockerfile", ""}


@pytest.mark.parametrize("page", [*PAGES, README], ids=lambda page: page.name)
def test_no_snippet_is_in_a_language_that_no_test_looks_at(page):
    fences = re.findall(r"^ *```(.*)$", page.read_text(), re.M)
    assert len(fences) % 2 == 0
    assert set(fences[::2]) <= LANGUAGES
    assert set(fences[1::2]) <= {""}


def test_the_job_file_that_is_shown_is_a_job_file(tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter22")
    monkeypatch.setenv("SHOP_DSN", "postgresql://localhost/shop")
    job, manifest = blocks(DOCS / "job-files.md", "yaml")
    (tmp_path / "job.yaml").write_text(job)
    found = read_job(tmp_path / "job.yaml")
    assert found.job.name == "totals"
    assert [next(iter(sink.model_dump(exclude_none=True))) for sink in found.job.sinks] == ["kafka", "postgres"]
    (container,) = yaml.safe_load(manifest)["spec"]["template"]["spec"]["containers"]
    program, command, *rest = container["args"]
    assert program == "holdfast"
    typer.main.get_command(app).commands[command].make_context(command, rest)


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
        elif words[:2] == ["pip", "wheel"]:
            assert words[-1] == "."  # made and installed by `make dist-check`
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


#: public names that nobody makes with options: what is handed out, what is extended, and what takes one text
NO_OPTIONS = {
    "CheckpointCommitter", "CheckpointStats", "HoldfastError", "IdempotentSink", "Outcome", "PendingCheckpoint", "Run",
    "Task", "Tasks", "TwoPhaseCommitSink", "WholeCheckpoint", "current_task", "parse_token",
}  # fmt: skip


def test_the_options_of_every_public_name_are_in_the_one_table():
    assert set(HELP) == set(hf.__all__) - NO_OPTIONS


@pytest.mark.parametrize("name", sorted(set(HELP) - {"StartFrom"}))  # which is made by its class methods
def test_signatures_in_the_reference_are_those_of_the_code(name):
    section = re.search(rf"^### {name}\n(.*?)(?=^#|\Z)", text("reference.md"), re.S | re.M)[1]
    typed = re.search(rf"`(hf\.{name}\(.*?\))`", section, re.S)
    assert typed, f"{name}: its section begins with no signature"
    call = ast.parse(f"def made({typed[1].partition('(')[2].removesuffix(')')}): pass").body[0].args
    given = [*call.args, *call.kwonlyargs]
    defaults = [None] * (len(call.args) - len(call.defaults)) + [*call.defaults, *call.kw_defaults]
    known = inspect.signature(getattr(hf, name)).parameters.values()
    kinds = [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(call.args)
    assert [one.arg for one in given] == [one.name for one in known]
    assert kinds == [one.kind for one in known if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    for one, default in zip(known, defaults, strict=True):
        shown = one.empty if default is None else eval(ast.unparse(default))  # noqa: S307  text of our own page
        if one.default is not one.empty and callable(one.default):
            assert shown is ..., one.name
        else:
            assert shown == one.default, one.name


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


def test_words_of_the_glossary_are_in_order_and_in_use():
    words = re.findall(r"^\| ([^|]+) \| .+ \|$", text("glossary.md"), re.M)[1:]
    assert words == sorted(words, key=str.lower)
    pages = "\n".join(page.read_text() for page in [*PAGES, README] if page.name != "glossary.md").lower()
    for word in (word for entry in words for word in entry.split(", ")):
        assert re.search(rf"\b{re.escape(word.lower())}", pages), f"no page says {word!r}"
