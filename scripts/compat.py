"""`make compat`: a chosen part of the tests on every Spark that pyproject.toml allows, each in its own environment.

Environments are kept in the cache (`~/.cache/holdfast/compat`), made from requirements.lock with another pyspark. What
each part said is written into the table in README.md, failures too, with the commit that it ran on; a test compares its
versions with pyproject.toml and looks for the commits in the history.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import re
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyspark
from bench.report import commit
from tests.servers.postgres import binaries

from holdfast.spark.jars import cache_folder

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
#: The newest of each line for which Kafka's connector resolved when this was written; of 4.3 there is none yet.
VERSIONS = ("4.0.4", "4.1.3", "4.2.0", "4.3.0")
BEGIN, END = "<!-- compat:begin -->", "<!-- compat:end -->"
NOT_RUN = "not run yet"
MINUTES = 30

#: column of the table -> the tests
PARTS = {
    "streams into SQLite and your own sinks": (
        "tests/integration/test_private.py",
        "tests/integration/test_partitions.py",
        "tests/integration/test_write_stream.py",
        "tests/integration/test_failures.py",
        "tests/integration/test_session.py::TestSparksOwnCheckpointFiles",
    ),
    "files": ("tests/integration/test_file_sink.py",),
    "PostgreSQL": ("tests/integration/test_postgres_spark.py",),
    "kills, with state": ("tests/crash/test_stateful.py",),
    "Kafka": (
        "tests/integration/test_kafka_source.py",
        "tests/integration/test_kafka_sink.py::test_kafka_and_sqlite_with_one_decision_on_spark",
        "tests/integration/test_kafka_modes.py::TestRepairOnSpark",
    ),
}
#: What Ivy says when it could ask nobody; that a version is "not found" it says then as well.
_AWAY = re.compile(r"Server access error|Host \S+ not found")
#: Older PySparks leave sockets to the garbage collector, and our own tests take every warning for an error.
WARNINGS = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")


@dataclass(frozen=True)
class Ran:
    """How one part went on one Spark."""

    text: str
    ok: bool


def environment(version: str) -> Path:
    """The folder of the environment with this pyspark, made if it is not there."""
    if version == pyspark.__version__:
        return Path(sys.prefix)
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    # py4j is pinned by each pyspark for itself.
    others = [line for line in lock.splitlines() if not re.match(r"(pyspark|py4j)==", line)]
    key = hashlib.sha256("\n".join(others).encode()).hexdigest()[:12]
    folder = cache_folder() / "compat" / f"{version}-{key}"
    if (folder / "done").exists():
        return folder
    print(f"compat: making the environment of pyspark {version}; pip builds it, which takes a minute", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    wanted = folder / "requirements.txt"
    wanted.write_text("\n".join([*others, f"pyspark=={version}"]), encoding="utf-8")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(wanted)], check=True)
    # The command alone: the package itself comes from this checkout, by PYTHONPATH.
    command = folder / "bin" / "holdfast"
    command.write_text(f"#!{folder}/bin/python\nfrom holdfast.cli import main\n\nmain()\n", encoding="utf-8")
    command.chmod(0o755)
    (folder / "done").touch()
    return folder


@functools.cache
def kafka_is_missing(version: str) -> str:
    """Why Kafka's connector cannot be had for this Spark; empty when it can. That nobody could be asked is an error."""
    code = "from holdfast.spark.jars import kafka_jars; kafka_jars()"
    done = _python(version, "-c", code)
    if _AWAY.search(done.stderr):
        raise RuntimeError(f"Kafka's connector for Spark {version}: {done.stderr[-2000:]}")
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def run(version: str, part: str) -> Ran:
    """Run one part on one Spark."""
    missing = kafka_is_missing(version)
    if part == "Kafka" and missing:
        print(f"compat: {version}, Kafka: {missing}", flush=True)
        return Ran("no connector for it", ok=True)
    began = time.monotonic()
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", *WARNINGS)
    done = _python(version, "-m", "pytest", *options, *PARTS[part], without_kafka=bool(missing))
    said = summary(done.stdout) or f"ended with {done.returncode}"
    if done.returncode:
        print(done.stdout[-6000:], done.stderr[-2000:], sep="\n")
    print(f"compat: {version}, {part}: {said}, {time.monotonic() - began:.0f} s", flush=True)
    return Ran(said, done.returncode == 0)


def summary(output: str) -> str:
    """How many tests passed and failed, in pytest's words; empty when it did not get that far."""
    found = re.findall(r"^(?:=+ )?((?:\d+ \w+(?:, )?)+) in ", output, re.M)
    return found[-1] if found else ""


def _python(version: str, *arguments: str, without_kafka: bool = False) -> subprocess.CompletedProcess[str]:
    folder = environment(version)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PATH": path}
    # As root the server runs as `nobody`, who cannot read root's cache: the binaries of this environment are the same.
    variables.setdefault("HOLDFAST_POSTGRES", str(binaries()))
    if without_kafka:
        variables["HOLDFAST_TESTS_WITHOUT_KAFKA"] = "1"  # see tests/integration/conftest.py
    command = [str(folder / "bin" / "python"), *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=60 * MINUTES
    )


def table(text: str, version: str, part: str, said: str, day: str) -> str:
    """README.md with what one part said on one Spark; all other cells stay as they are."""
    begin, end = text.index(BEGIN), text.index(END) + len(END)
    lines = (line[2:-2].split(" | ") for line in text[begin:end].splitlines() if re.match(r"\| \d", line))
    rows = {cells[0]: dict(zip(PARTS, cells[1:-1], strict=True)) | {"day": cells[-1]} for cells in lines}
    rows[version] = dict.fromkeys(PARTS, NOT_RUN) | rows.get(version, {}) | {part: said, "day": day}
    made = [f"| Spark | {' | '.join(PARTS)} | last run on |", "|" + "---|" * (len(PARTS) + 2)]
    for name, row in sorted(rows.items()):
        made.append(f"| {name} | {' | '.join(row[part] for part in PARTS)} | {row['day']} |")
    return text[:begin] + "\n".join([BEGIN, *made, END]) + text[end:]


def main() -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="make compat", description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this")
    chosen = parser.parse_args()
    failed = False
    for version in chosen.versions:
        for part in chosen.part or PARTS:
            ran = run(version, part)
            said = f"{ran.text}, {commit()}"
            failed = failed or not ran.ok
            day = datetime.now(UTC).date().isoformat()
            # At once, and also what failed: the table says what was seen, not what was hoped for.
            README.write_text(table(README.read_text(encoding="utf-8"), version, part, said, day), encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    print(text[text.index(BEGIN) : text.index(END)])
    print("compat: something failed" if failed else "compat: all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
