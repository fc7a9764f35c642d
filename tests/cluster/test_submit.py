"""`spark-submit` to a real cluster: what is shipped is used, and what is missing is told at the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster import pythons
from tests.servers.spark_cluster import CONF, HOME, SparkCluster
from tests.spark_conf import FAST

HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("".join(json.dumps({"id": i}) + "\n" for i in range(100)))
    return tmp_path


def submit(
    cluster: SparkCluster, folder: Path, python: str, options: Sequence[str], *arguments: str, mode: str = "client"
) -> subprocess.CompletedProcess[str]:
    """Submit the job; executors run this Python, the driver ours."""
    settings = {**FAST, **CONF, "spark.pyspark.python": python, "spark.pyspark.driver.python": sys.executable}
    told = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    where = ["--master", cluster.url, "--deploy-mode", mode]
    command = [str(HOME / "bin" / "spark-submit"), *where, *told, *options, str(HERE / "submitted_job.py")]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")}
    env["PYTHONPATH"] = str(HERE)  # the driver finds the sink; executors only if it is shipped
    return subprocess.run(
        [*command, str(folder), *arguments], env=env, capture_output=True, text=True, timeout=240, check=False
    )


def written(folder: Path) -> tuple[list[int], set[str]]:
    """The ids that came, and who wrote them."""
    parts = [path.read_text().splitlines() for path in (folder / "out").iterdir()]
    return sorted(int(line) for part in parts for line in part[:-1]), {part[-1] for part in parts}


@pytest.mark.timeout(300)
def test_r4_an_archive_of_an_environment_is_what_executors_run(spark_cluster: SparkCluster, folder: Path) -> None:
    pythons.make(folder / "env")
    packed = pythons.archive(folder / "env", folder / "env.tar.gz")
    options = ["--archives", f"{packed}#env", "--py-files", str(HERE / "submitted_sink.py")]
    done = submit(spark_cluster, folder, "./env/bin/python", options, "hf", "run")
    assert f"ENDED {spark_cluster.url}" in done.stdout, done.stdout + done.stderr[-4000:]
    ids, writers = written(folder)
    assert ids == list(range(100))
    assert all("/env/lib/holdfast/__init__.py" in line for line in writers), writers


@pytest.mark.timeout(300)
def test_r4_py_files_are_enough_where_the_rest_is_installed_and_what_is_missing_is_told(
    spark_cluster: SparkCluster, folder: Path
) -> None:
    python = pythons.make(folder / "env", without=["psycopg"])
    options = ["--py-files", str(pythons.py_files(folder / "holdfast.zip"))]
    done = submit(spark_cluster, folder, str(python), options, "plain", "run", "ship", "extra", "run")
    told = [line for line in done.stdout.splitlines() if line.startswith(("ENDED", "REFUSED"))]
    assert len(told) == 3, done.stdout + done.stderr[-4000:]
    own, extra, end = told
    assert "REFUSED MissingExtraError: an executor on " in own and "lack the module 'submitted_sink'. Ship" in own
    assert "spark-submit --py-files submitted_sink.py" in own
    assert "lack the module 'psycopg'. Install 'holdfast[postgres]' on every machine" in extra
    assert end == f"ENDED {spark_cluster.url}"
    ids, writers = written(folder)
    assert ids == list(range(100))
    assert all("holdfast.zip/holdfast/__init__.py" in line for line in writers), writers


@pytest.mark.timeout(300)
def test_r4_executors_that_lack_the_package_are_told_at_the_start(spark_cluster: SparkCluster, folder: Path) -> None:
    bare = pythons.make(folder / "bare")
    done = submit(spark_cluster, folder, str(bare), [], "plain", "run")
    assert "REFUSED MissingExtraError: an executor on " in done.stdout, done.stdout + done.stderr[-4000:]
    assert "lack the module 'holdfast'" in done.stdout
    assert "spark-submit --archives env.tar.gz#env" in done.stdout
    assert not (folder / "checkpoint" / "holdfast" / "generations").exists(), "nobody was fenced"


@pytest.mark.timeout(120)
def test_r4_spark_itself_refuses_python_in_the_cluster_mode_of_standalone(
    spark_cluster: SparkCluster, folder: Path
) -> None:
    done = submit(spark_cluster, folder, sys.executable, [], "hf", "run", mode="cluster")
    assert done.returncode != 0
    assert "not supported for python applications on standalone clusters" in done.stderr, done.stderr[-2000:]
