"""FileSink keeps the contract: with a file for every checkpoint, and with files that wait for many."""

import json
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pytest

import holdfast as hf
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.records import decode
from holdfast.checkpoint.storage import LocalStorage
from holdfast.connectors.files.parts import Folder, read_part
from holdfast.connectors.files.state import PartsState
from holdfast.testing import exercise_sink
from holdfast.testing.context import SCHEMA
from tests.contract.test_shipped_sinks import assert_all_ran


def read_parquet(folder):
    if not Path(folder).exists():
        return []
    return pa.dataset.dataset(folder, schema=SCHEMA, partitioning="hive").to_table().to_pylist()


def read_json(folder):
    files = [file for file in Path(folder).rglob("*.json") if "_holdfast" not in file.parts]
    return [json.loads(line) for file in files for line in file.read_bytes().split(b"\n")[:-1]]


def read_csv(folder):
    convert = pyarrow.csv.ConvertOptions(
        column_types=SCHEMA, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    files = [file for file in Path(folder).rglob("*.csv") if "_holdfast" not in file.parts]
    return [row for f in files for row in pyarrow.csv.read_csv(f, None, parse, convert).to_pylist()]


READERS = {"parquet": read_parquet, "json": read_json, "csv": read_csv}


def hidden(folder):
    """Everything but the ledger, which stays."""
    found = Path(folder, "_holdfast").rglob("*")
    return [str(path) for path in found if path.is_file() and path.parent.parent.name != "ledger"]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("form", READERS)
def test_a_file_for_every_checkpoint(tmp_path, form):
    report = exercise_sink(
        lambda: hf.FileSink(tmp_path / "out", form, rolling=hf.Rolling(age="0s"), csv_readers=()),
        lambda: READERS[form](tmp_path / "out"),
        leftovers=lambda: hidden(tmp_path / "out"),
    )
    assert_all_ran(report, "mark_is_lost")


def test_files_by_bucket(tmp_path):
    report = exercise_sink(
        lambda: hf.FileSink(
            tmp_path / "out", bucket_by=["amount_class", hf.TimeBucket()], rolling=hf.Rolling(age="0s")
        ),
        lambda: read_bucketed(tmp_path / "out"),
        schema=BUCKETED,
        make_row=lambda n: {"id": n, "name": f"n{n}", "amount_class": [None, "a/b", "..", "x=%"][n % 4]},
        leftovers=lambda: hidden(tmp_path / "out"),
    )
    assert_all_ran(report, "mark_is_lost")


BUCKETED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount_class", pa.string())])


def read_bucketed(folder):
    if not Path(folder).exists():
        return []
    return pa.dataset.dataset(folder, schema=BUCKETED, partitioning=HIVE).to_table().to_pylist()


HIVE = pa.dataset.partitioning(pa.schema([("amount_class", pa.string())]), flavor="hive")


class Remembering(hf.FileSink):
    """Notes where its log is, so that the test can see what `holdfast flush` would complete."""

    locations: ClassVar[set[str]] = set()

    def open(self, run):
        self.locations.add(run.location)
        super().open(run)


def waiting(folder):
    """(rows that are decided and wait for their file, the hidden files they are in)."""
    rows, files = [], set()
    for location in list(Remembering.locations):
        if not Path(location).exists():
            continue
        log = CheckpointLog(LocalStorage(location), "")
        log.load()
        pipeline = decode(log.storage.read("lineage.json"), location, "lineage")["pipeline"]
        saved = None if log.last_decided is None else log.facts.decided[log.last_decided].state.get("files-out")
        state = PartsState.from_json(saved, "the test")
        home = Folder(str(folder), pipeline, "files-out")
        done = {part.file for roll in state.rolls for part in roll.parts if home.exists(roll.target)}
        parts = [*state.waiting, *(p for r in state.rolls if not r.hidden for p in r.parts)]
        planned = {roll.target: roll.parts for roll in state.rolls if roll.hidden}
        for part in parts:
            sources = [part] if home.exists(home.hidden(part.file)) else planned.get(part.file, ())
            for source in (s for s in sources if s.file not in done):
                files.add(str(Path(folder, home.hidden(source.file))))
                rows += [row for batch in read_part(home, source.file) for row in batch.to_pylist()]
    return rows, files


def test_files_that_wait_for_many_checkpoints(tmp_path):
    """Nothing is completed by itself here: what counts is what `holdfast flush` would complete (F3, F5)."""
    Remembering.locations.clear()
    folder = tmp_path / "out"
    report = exercise_sink(
        lambda: Remembering(folder, rolling=hf.Rolling(size="1GB", age="10h", inactivity=None)),
        lambda: [*read_parquet(folder), *waiting(folder)[0]],
        leftovers=lambda: set(hidden(folder)) - waiting(folder)[1],
    )
    assert_all_ran(report, "mark_is_lost")
