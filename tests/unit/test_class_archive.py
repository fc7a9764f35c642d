"""The tests' own archive of Spark's classes: used when it is there and fits, never in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import class_archive


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.delenv(class_archive.VARIABLE, raising=False)


def test_without_an_archive_nothing_is_set() -> None:
    class_archive.use()
    assert class_archive.VARIABLE not in os.environ


def test_an_archive_is_added_once_to_the_options_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(class_archive.VARIABLE, "-Dx=1")
    archive = class_archive.location()
    archive.parent.mkdir()
    archive.touch()
    class_archive.use()
    class_archive.use()
    assert os.environ[class_archive.VARIABLE] == f"-Dx=1 -XX:SharedArchiveFile={archive}"


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = class_archive.location()
    assert first == class_archive.location()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert class_archive.location() != first


@pytest.mark.parametrize("content", [b"", b"no archive" * 1000])
def test_java_goes_on_without_an_archive_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.jsa").write_bytes(content)
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    assert java
    subprocess.run([java, f"-XX:SharedArchiveFile={tmp_path}/bad.jsa", "-version"], check=True, capture_output=True)
