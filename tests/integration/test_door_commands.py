"""The commands know a pipeline behind `format("holdfast")` as any other: while it runs, and after it failed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner

from holdfast.cli.app import app
from tests.integration.helpers import add_file, ids, read_files
from tests.integration.test_doors import own, run, start

pytestmark = pytest.mark.spark


def command(*words: Any) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.mark.contract("S5")
def test_a_savepoint_of_a_query_that_runs_behind_the_door(spark, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, range(10))
    options = {"name": "door", "sink": "sqlite", "path": str(tmp_path / "out.db"), "table": "orders"}
    writer = read_files(spark, tmp_path / "in").writeStream.format("holdfast").options(**options)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="200 milliseconds").start()
    try:
        query.processAllAvailable()
        with ThreadPoolExecutor() as pool:
            order = pool.submit(
                command, "savepoint", "create", tmp_path / "checkpoint", tmp_path / "saved", "--name", "one"
            )
            for n in range(1, 40):  # a running query saves itself between two batches
                add_file(tmp_path / "in", n, range(n * 10, n * 10 + 10))
                query.processAllAvailable()
                if order.done():
                    break
        assert order.result().exit_code == 0, order.result().output
    finally:
        query.stop()
    saved = json.loads(command("savepoint", "show", tmp_path / "saved" / "one", "--json").stdout)
    assert 0 <= saved["checkpoint_id"] <= n
    before = ids(tmp_path / "out.db")
    assert before == list(range(n * 10 + 10))
    # Another pipeline goes on from there, into a table of its own: with what came after the savepoint.
    done = command("savepoint", "start-from", tmp_path / "saved" / "one", tmp_path / "new", "--name", "other")
    assert done.exit_code == 0, done.output
    other = read_files(spark, tmp_path / "in").writeStream.format("holdfast").options(**{**options, "name": "other"})
    other = other.option("path", str(tmp_path / "other.db")).option("checkpointLocation", str(tmp_path / "new"))
    other.trigger(availableNow=True).start().awaitTermination()
    after = ids(tmp_path / "other.db") if (tmp_path / "other.db").exists() else []
    assert after == list(range((saved["checkpoint_id"] + 1) * 10, n * 10 + 10))


@pytest.mark.contract("D4")
def test_what_the_door_could_not_deliver_is_given_up_by_resolve_and_kept_in_a_report(spark, tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0, range(5))
    (tmp_path / "down").touch()
    options = {"sinks": own("Lags", tmp_path), "drainTimeout": "1s"}
    with pytest.raises(StreamingQueryException, match="UndeliveredError"):
        start(read_files(spark, tmp_path / "in"), tmp_path, **options).awaitTermination()
    location = tmp_path / "checkpoint"
    assert command("status", location).exit_code == 2, "it has ended, and owes rows"
    done = command("resolve", location, 0, "--give-up", "--yes", "--fence", "--json")
    assert done.exit_code == 0, done.output
    kept = command("resolve", location, "--rows", 0)
    assert sorted(json.loads(line)["id"] for line in kept.stdout.splitlines()) == list(range(5))
    (tmp_path / "down").unlink()
    add_file(tmp_path / "in", 1, range(5, 8))
    run(read_files(spark, tmp_path / "in"), tmp_path, **options)
    assert sorted(map(int, (tmp_path / "sent").read_text().split())) == [5, 6, 7]
    assert command("status", location).exit_code == 0
