"""Rows taken from the plan of a micro-batch are the rows of the frame that foreachBatch gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import holdfast as hf
from holdfast import errors
from holdfast.core.passes import PASSES, RING, TURNS
from holdfast.spark import partitions, tasks
from tests.integration.helpers import add_file, read_files

pytestmark = pytest.mark.spark

PLAIN = [
    "id",
    "id % 3 = 0 AS yes",
    "CAST(id % 100 AS byte) AS a_byte",
    "CAST(id AS short) AS a_short",
    "CAST(id AS int) AS an_int",
    "CAST(id AS float) / 3 AS a_float",
    "id / 7 AS a_double",
    "CAST(id / 3 AS decimal(20, 5)) AS a_decimal",
    "IF(id % 4 = 0, NULL, repeat('é', id % 5)) AS a_text",
    "IF(id % 4 = 1, NULL, CAST(word AS binary)) AS some_bytes",
    "date_add(DATE'2024-02-28', CAST(id AS int)) AS a_date",
    "timestamp_micros(id * 1000003) AS a_time",
    "CAST(timestamp_micros(id) AS timestamp_ntz) AS a_local_time",
]


class Keeper(hf.IdempotentSink):
    """Keeps the batches as they come."""

    name = "keeper"

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def upsert(self, connection: None, batch: pa.RecordBatch) -> None:
        task = hf.current_task()
        if "poison" in batch.schema.names and task.checkpoint_id:
            raise ValueError("a row that nobody can write")
        path = Path(self.folder, f"{task.checkpoint_id}-{task.subtask}-{len(list(Path(self.folder).iterdir()))}.arrow")
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
            stream.write_batch(batch)

    def kept(self, checkpoint_id: int) -> pa.Table:
        """Every row of a checkpoint, with the schema the task saw."""
        found = [pa.ipc.open_stream(p.read_bytes()).read_all() for p in Path(self.folder).glob(f"{checkpoint_id}-*")]
        assert len({table.schema.serialize().to_pybytes() for table in found}) == 1
        return pa.concat_tables(found).sort_by("id")


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From what each pass over a micro-batch took its rows."""
    seen: list[str] = []

    def noting(frame: DataFrame, plan: Any, function: partitions.PartitionFunction, *, together: bool) -> list[str]:
        seen.append("frame" if plan is None else "plan")
        return partitions.each_partition(frame, plan, function, together=together)

    monkeypatch.setattr(tasks, "each_partition", noting)
    return seen


def deliver(frame: DataFrame, folder: Path) -> tuple[Keeper, Any]:
    (folder / "kept").mkdir()
    keeper = Keeper(folder / "kept")
    writer = hf.write_stream(frame, keeper, name="partitions", checkpoint_location=str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return keeper, query


def test_the_same_rows_and_the_same_schema(spark, tmp_path, ways) -> None:
    for number in range(3):
        add_file(tmp_path / "in", number, range(200))
    keeper, query = deliver(read_files(spark, tmp_path / "in").repartition(3).selectExpr(*PLAIN), tmp_path)
    assert ways == ["plan", "plan", "plan"]
    first = keeper.kept(0)
    assert first.num_rows == 200 and first.schema.names[-1] == "a_local_time"
    assert keeper.kept(1).schema == first.schema
    assert keeper.kept(1).equals(first) and keeper.kept(2).equals(first)
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [200, 200, 200]


def test_nested_and_large_rows_and_those_a_user_has_limited_come_from_the_frame(spark, tmp_path, ways) -> None:
    for number in range(2):
        add_file(tmp_path / "in", number, range(20))
    source = read_files(spark, tmp_path / "in")
    for name, columns in (("nested", ["id", "array(id, id + 1) AS pair"]), ("large", ["id", "repeat('x', 2000) AS x"])):
        (tmp_path / name).mkdir()
        keeper, _ = deliver(source.selectExpr(*columns), tmp_path / name)
        assert keeper.kept(1).equals(keeper.kept(0)) and keeper.kept(0).num_rows == 20
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "7")
    try:
        (tmp_path / "limited").mkdir()
        keeper, _ = deliver(source, tmp_path / "limited")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    # Before the first checkpoint nobody knows that rows are large: a thousand of them may come.
    assert ways == ["frame", "frame", "plan", "frame", "frame", "frame"]


def test_aggregates_with_a_watermark(spark, tmp_path, ways) -> None:
    """Plans with state run once for a micro-batch, and the next one goes on from there."""
    for number in range(4):
        add_file(tmp_path / "in", number, range(number * 60, number * 60 + 60), minute=number * 5)
    totals = read_files(spark, tmp_path / "in").withWatermark("at", "1 minute").groupBy("at").count()
    keeper, _ = deliver(totals.selectExpr("unix_timestamp(at) AS id", "count"), tmp_path)
    # Spark 4.3 gives such a plan another schema than the frame's, so that rows come from the frame there.
    assert ("plan" in ways) == (pyspark.__version__ < "4.3")
    found = [row for n in range(len(ways)) for row in (keeper.kept(n).to_pylist() if keeper_has(keeper, n) else [])]
    assert len({row["id"] for row in found}) == len(found), "no window twice"
    assert sum(row["count"] for row in found) == 180, "the watermark holds back the last of four"


def keeper_has(keeper: Keeper, checkpoint_id: int) -> bool:
    return any(Path(keeper.folder).glob(f"{checkpoint_id}-*"))


def test_what_a_task_raises_is_in_the_querys_error(spark, tmp_path, ways) -> None:
    for number in range(2):
        add_file(tmp_path / "in", number, range(20))
    with pytest.raises(errors.SinkError, match="'keeper': write failed: ValueError: a row that nobody can write") as it:
        deliver(read_files(spark, tmp_path / "in").selectExpr("id", "word AS poison"), tmp_path)
    assert isinstance(it.value.__cause__, StreamingQueryException)
    assert ways == ["plan", "plan"]
    said = hf.checkpoints(str(tmp_path / "checkpoint"))[-1].error
    assert said is not None and "a row that nobody can write" in said


def test_what_the_query_raises_is_told_in_a_line_and_is_an_error_of_both_kinds(spark, tmp_path, ways) -> None:
    add_file(tmp_path / "in", 0, range(20))

    def broken(batches):  # type: ignore[no-untyped-def]
        raise KeyError("no such customer")
        yield from batches

    with pytest.raises(StreamingQueryException, match="KeyError: 'no such customer'") as it:
        deliver(read_files(spark, tmp_path / "in").mapInArrow(broken, "id long"), tmp_path)
    assert isinstance(it.value, errors.EngineError) and it.value.action == "restart"
    assert "KeyError: 'no such customer'" in str(hf.checkpoints(str(tmp_path / "checkpoint"))[-1].error)


class Places(hf.IdempotentSink):
    """Notes the places of the attempts."""

    name = "places"

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def upsert(self, connection: None, batch: pa.RecordBatch) -> None:
        task = hf.current_task()
        Path(self.folder, f"{task.checkpoint_id}.{task.subtask}.{task.place}").touch()


@pytest.mark.parametrize("shuffled", [False, True], ids=["one stage", "after a shuffle"])
def test_p4_batches_without_failures_take_turns_with_two_numbers(spark, tmp_path, shuffled) -> None:
    """Spark says of each stage that it was run once: else every batch would take new ones."""
    for number in range(6):
        add_file(tmp_path / "in", number, range(20))
    (tmp_path / "places").mkdir()
    frame = read_files(spark, tmp_path / "in")
    sink = Places(tmp_path / "places")
    writer = hf.write_stream(
        frame.repartition(3) if shuffled else frame, sink, name="places", checkpoint_location=str(tmp_path / "ck")
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    found = [tuple(map(int, path.name.split("."))) for path in (tmp_path / "places").iterdir()]
    passes = {checkpoint: place % PASSES for checkpoint, _, place in found}
    assert len(passes) == 6 and {*passes.values()} == set(range(TURNS))
    assert all(passes[n] != passes[n + 1] for n in range(5))
    assert all(place // PASSES < RING for _, _, place in found), "each is the first try"
