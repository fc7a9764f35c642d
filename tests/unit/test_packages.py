"""What a start says of executors that lack packages; tests/cluster shows it on real ones."""

from __future__ import annotations

import pickle
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import holdfast as hf
from holdfast.checkpoint.ports import Run
from holdfast.doors.orders import TaskOrder
from holdfast.doors.source import Writing
from holdfast.errors import ConfigError, MissingExtraError
from holdfast.spark.failures import from_text
from holdfast.spark.look import look
from holdfast.spark.packages import MODULES, check, extras_of

GOOD = {"host": "h", "python": "/p (3.11.2)", "missing": [], "failure": None, "version": hf.__version__}


@pytest.mark.parametrize(
    ("seen", "error", "text"),
    [
        (
            {"missing": ["holdfast"]},
            MissingExtraError,
            r"on h runs /p \(3.11.2\).*lack the module 'holdfast'.*--archives",
        ),
        ({"missing": ["psycopg"]}, MissingExtraError, r"Install 'holdfast\[postgres\]' on every machine"),
        ({"missing": ["my.sinks"]}, MissingExtraError, "--py-files my.py"),
        ({"failure": "ImportError: no libpq"}, ConfigError, "cannot load the sinks: ImportError: no libpq"),
        ({"version": "0.0.9"}, ConfigError, f"holdfast 0.0.9, and the driver has {hf.__version__}"),
    ],
)
def test_what_is_wrong_is_told_with_its_remedy(seen: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        check({**GOOD, **seen}, ["postgres"])


def test_nothing_is_said_when_all_is_there() -> None:
    check(GOOD, [])


def test_a_look_finds_what_is_missing_and_what_is_broken() -> None:
    assert look(["sqlite3", "no_such_module"], b"", 0)["missing"] == ["no_such_module"]
    unknown = b"cno_such_module\nThing\n."
    assert look([], unknown, 0)["missing"] == ["no_such_module"]
    assert "UnpicklingError" in look([], b"?", 0)["failure"]
    found = look(["sqlite3"], pickle.dumps([1]), 0)
    assert found["missing"] == [] and found["failure"] is None and found["version"] == hf.__version__
    assert found["python"].startswith(sys.executable)


def test_extras_are_those_of_sinks_committers_and_stores(tmp_path: Path) -> None:
    class Endpoint(hf.WriteAheadSink):
        def send_values(self, values: Any, checkpoint_id: int, timestamp: int) -> bool:
            return True

    kafka, postgres = hf.KafkaSink("localhost:9", "t"), hf.PostgresSink("postgresql://localhost/x", "t")
    marks = Endpoint(committer=hf.SqlCheckpointCommitter("postgresql://localhost/x"))
    local = Endpoint(committer=hf.SqlCheckpointCommitter(tmp_path / "marks.db"))
    assert extras_of([kafka, postgres], "/ck") == ["kafka", "postgres"]
    assert extras_of([marks], "s3://bucket/ck") == ["postgres", "s3"]
    assert extras_of([local], "/ck") == extras_of([hf.SqliteSink(tmp_path / "x.db", "t")], "/ck") == []
    assert extras_of([hf.FileSink("s3a://bucket/out")], "/ck") == ["s3"]


def test_every_module_of_an_extra_is_one_that_can_be_found() -> None:
    everything = [name for names in MODULES.values() for name in names]
    assert look(everything, pickle.dumps(None), 0)["missing"] == []


def test_a_task_of_the_door_without_holdfast_says_what_to_ship_and_how(tmp_path: Path) -> None:
    """In a Python that has Spark's packages and not ours; through the door nobody asks executors before."""
    run = Run("door", "lineage", 0, str(tmp_path))
    kafka = hf.KafkaSink("localhost:9", "t", name="out")
    (tmp_path / "writer").write_bytes(cloudpickle.dumps(Writing(TaskOrder(run, 0, sinks=(kafka,)))))
    code = (
        "import pickle, sys\n"
        "class NotHere:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in sys.argv[2:]: raise ModuleNotFoundError(name=name)\n"
        "import importlib.util\n"
        "plain = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name in sys.argv[2:] else plain(name)\n"
        "sys.meta_path.insert(0, NotHere())\n"
        "writer = pickle.load(open(sys.argv[1], 'rb'))\n"
        "writer.write(iter([]))\n"
    )

    def said(*lacks: str) -> str:
        command = [sys.executable, "-c", code, str(tmp_path / "writer"), *lacks]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode != 0
        return done.stderr

    for lacks in ("holdfast", "confluent_kafka"):
        error = from_text(said(lacks))
        assert isinstance(error, MissingExtraError)
        with pytest.raises(MissingExtraError) as told:
            seen = {"host": socket.gethostname(), "python": f"{sys.executable} ({platform.python_version()})"}
            check({**GOOD, **seen, "missing": [lacks]}, ["kafka"])
        begin, _, _ = str(told.value).partition(" for the Python that ")
        assert str(error).startswith(begin), "the same words as with hf.write_stream, but for how to ship it"
        assert "PYSPARK_PYTHON names where the driver is started" in str(error)
        assert "Install 'holdfast[kafka]' on every machine" in str(error) and "Nothing was decided" in str(error)
    # Where all is there it gets as far as a task can get without Spark.
    assert "assert context is not None" in said()
