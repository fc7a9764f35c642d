"""The archive of Spark's classes: used when it is there and fits, never in the way."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.errors import ConfigError
from holdfast.spark import class_archive
from holdfast.spark.class_archive import JAVA_OPTIONS, SETTING, location, options


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    for name in (*class_archive._VARIABLES, *class_archive._CLASS_PATH):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def archive() -> Path:
    found = location()
    assert found is not None
    found.parent.mkdir()
    found.touch()
    return found


def test_without_an_archive_java_is_told_nothing() -> None:
    assert options({}) == ""


def test_an_archive_that_is_there_is_used(archive: Path) -> None:
    os.utime(archive, (1, 1))
    assert options({}).endswith(f" -XX:SharedArchiveFile={archive}")
    assert archive.stat().st_mtime > time.time() - 60, "it is in use, so nobody removes it"


def test_a_folder_may_have_a_blank_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "my cache"))
    archive = location()
    assert archive is not None
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert shlex.split(options({}))[-1] == f"-XX:SharedArchiveFile={archive}"


@pytest.mark.parametrize("given", ["-XX:SharedArchiveFile=/my.jsa", "-Xshare:off", "-XX:ArchiveClassesAtExit=/x"])
@pytest.mark.parametrize("where", ["setting", "variable"])
def test_what_the_user_says_wins(archive: Path, monkeypatch: pytest.MonkeyPatch, given: str, where: str) -> None:
    if where == "setting":
        assert options({JAVA_OPTIONS: given}) == ""
    else:
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", given)
        assert options({}) == ""


def test_it_can_be_switched_off_and_a_wrong_word_is_told(archive: Path) -> None:
    assert options({SETTING: "off"}) == ""
    with pytest.raises(ConfigError, match=rf"{SETTING} must be one of use, make, off, not 'on'"):
        options({SETTING: "on"})


def test_another_java_or_class_path_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = location()
    assert first == location()
    assert location({"spark.driver.extraClassPath": "/opt/x.jar"}) != first
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert location() != first
    monkeypatch.delenv("SPARK_CONF_DIR")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert location() != first


def test_without_java_or_spark_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert location() is None and options({}) == ""
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert location() is None and options({}) == ""


def test_only_one_process_makes_it_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    for _ in range(2):
        assert options({SETTING: "make"}) == ""
    assert len(started) == 1 and started[0][-1] == "holdfast.spark.class_archive"
    archive = location()
    assert archive is not None
    os.utime(archive.with_suffix(".making"), (1, 1))  # whoever began it was killed
    options({SETTING: "make"})
    assert len(started) == 2


def test_prepare_tells_where_it_is_and_makes_it_once(archive: Path) -> None:
    archive.write_bytes(b"x" * 2048)
    done = CliRunner().invoke(app, ["prepare", "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout) == {"archive": str(archive), "bytes": 2048, "jars": []}


def test_prepare_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Java's own reason, and nothing half made is left."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho no Java today >&2\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["prepare"])
    assert done.exit_code == 1 and "kept no archive of Spark's classes" in done.stderr
    assert list((tmp_path / "classes").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no archive" * 1000])
def test_java_goes_on_in_silence_without_an_archive_that_is_none(archive: Path, content: bytes) -> None:
    archive.write_bytes(content)
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    assert java
    done = subprocess.run([java, *options({}).split(), "-version"], check=True, capture_output=True, text=True)
    assert done.stdout == "" and "warning" not in done.stderr
