"""Pythons as machines of a cluster have them: with some packages and without others."""

from __future__ import annotations

import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Nothing of the environment that the tests run in but what is in the folder beside it.
_SCRIPT = """#!/bin/sh
here="$(cd "$(dirname "$0")/.." && pwd)"
PYTHONPATH="$here/lib:$PYTHONPATH" exec {python} -S "$@"
"""


def make(folder: Path, without: Collection[str] = ()) -> Path:
    """A Python with all packages of this environment but these, and holdfast only as a package of `lib`."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.name.partition(".")[0] not in {*without, "pyspark"} and path.suffix != ".pth":
            (folder / "lib" / path.name).symlink_to(path)
    python = folder / "bin" / "python"
    python.write_text(_SCRIPT.format(python=sys._base_executable))  # type: ignore[attr-defined]
    python.chmod(0o755)
    return python


def archive(folder: Path, target: Path) -> Path:
    """The environment with holdfast in it, packed, as venv-pack makes it."""
    with tarfile.open(target, "w:gz") as tar:
        tar.add(folder, ".")
        tar.add(ROOT / "src" / "holdfast", "lib/holdfast")
    return target


def py_files(target: Path) -> Path:
    """holdfast alone, as a zip for `--py-files`."""
    with zipfile.ZipFile(target, "w") as file:
        for path in sorted((ROOT / "src").rglob("*.py")):
            file.write(path, path.relative_to(ROOT / "src"))
    return target
