"""Spark's worker daemon with imports done: it never forks with threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

LOOK = """
import sys
from holdfast.spark import daemon
print(daemon.preload(), "pyarrow" in sys.modules, "given" in sys.modules, "JE_ARROW_MALLOC_CONF" in daemon.os.environ)
"""


def python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(folder), str(Path(holdfast.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, input="", capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os", "True True True False"),
        ("import nobody_has_this", "True True False False"),
        ("import threading, time; threading.Thread(target=time.sleep, args=[9], daemon=True).start()", "False"),
    ],
)
def test_imports_are_done_and_threads_noticed(tmp_path: Path, code: str, told: str) -> None:
    (tmp_path / "given.py").write_text(code)
    done = python(tmp_path, "-c", LOOK, HOLDFAST_PRELOAD="given")
    assert done.stdout.startswith(told), done.stderr


def test_with_threads_it_starts_over_as_sparks_own(tmp_path: Path) -> None:
    (tmp_path / "given.py").write_text("import threading, time; threading.Thread(target=time.sleep, args=[9]).start()")
    # What Spark's own says of itself when it is imported under that name.
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "daemon.py").write_text("import sys; print('own', sys.argv[1:])")
    stub = "from holdfast.spark import daemon; daemon.ALWAYS = (); import sys; sys.argv = ['x', 'pyspark.worker']; "
    done = python(tmp_path, "-c", f"{stub}daemon.main()", HOLDFAST_PRELOAD="given")
    assert done.stdout == "own ['pyspark.worker']\n" and "started a thread" in done.stderr


def test_without_sparks_manager_it_starts_over_as_sparks_own(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    own = "import sys\nif __name__ == '__main__':\n    print('own', sys.argv[1:])\n"
    (tmp_path / "pyspark" / "daemon.py").write_text(own)
    stub = "from holdfast.spark import daemon; daemon.ALWAYS = (); import sys; sys.argv = ['x', 'pyspark.worker']; "
    done = python(tmp_path, "-c", f"{stub}daemon.main()")
    assert done.stdout == "own ['pyspark.worker']\n" and "no pyspark.daemon.manager" in done.stderr
