"""Options: what constructors refuse, the schema of job files says and the command line shows is one table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.core.options import SECRET, Columns, Limit, check, checked, one_of, whole
from holdfast.errors import ConfigError
from holdfast.pipeline.model import SINKS, job_model
from holdfast.pipeline.options import options_of


@checked
def make(
    name: str,
    mode: Annotated[str, one_of("a", "b")] = "a",
    *,
    key: Columns = (),
    many: Annotated[int, whole(1, 9)] = 1,
    most: Limit = None,
    share: float = 0.5,
    on: bool = False,
    password: Annotated[str, SECRET] | None = None,
    more: Mapping[str, Any] | None = None,
    names: str | Sequence[str] = (),
) -> str:
    return name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": 5}, "name must be text, not 5"),
        ({"mode": "c"}, "mode must be one of a, b, not 'c'"),
        ({"mode": None}, "mode must be one of a, b, not None"),
        ({"mode": ["a"]}, r"mode must be one of a, b, not \['a'\]"),
        ({"key": "id"}, r"key must be a list of columns: key=\['id'\]"),
        ({"key": [1]}, r"key must be a list of columns, not \[1\]"),
        ({"many": 0}, "many must be a whole number from 1 to 9, not 0"),
        ({"many": True}, "many must be a whole number from 1 to 9, not True"),
        ({"many": 1.0}, "many must be a whole number from 1 to 9, not 1.0"),
        ({"most": 0}, "most must be a whole number of at least 1, or None, not 0"),
        ({"share": "1"}, "share must be a number, not '1'"),
        ({"share": True}, "share must be a number, not True"),
        ({"on": "no"}, "on must be True or False, not 'no'"),
        ({"on": 1}, "on must be True or False, not 1"),
        ({"password": b"s3cret"}, "password must be text, or None, not bytes$"),
        ({"more": []}, r"more must be a dict, or None, not \[\]"),
        ({"names": [3]}, r"names must be text or a list of text, not \[3\]"),
    ],
)
def test_what_is_not_of_its_type_is_refused_with_the_options_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**{"name": "x", **options})


def test_what_is_of_its_type_is_taken_and_python_tells_of_a_name_that_is_none() -> None:
    assert make("x", "b", key=("id",), many=9, most=3, share=1, on=True, password="p", more={}, names="a") == "x"
    assert make("x", key=["id"], names=["a"]) == "x"
    with pytest.raises(TypeError, match=r"make\(\) got an unexpected keyword argument 'colour'"):
        make("x", colour=1)  # type: ignore[call-arg]
    check("x", Path, Path("/"))
    check("anything", Any, object())


@pytest.mark.parametrize(
    ("sink", "options"),
    [
        (hf.SqliteSink, {"path": "f", "table": "t", "max_targets": "many"}),
        (hf.PostgresSink, {"dsn": "postgresql://h/d", "table": "t", "create": "no"}),
        (hf.FileSink, {"path": "/data", "rolling": "1m"}),
        (hf.KafkaSink, {"bootstrap_servers": "h:9092", "config": ["a"]}),
        (hf.CassandraSink, {"contact_points": ["h"], "keyspace": "k", "table": "t", "port": "9042"}),
        (hf.StdoutSink, {"max_pending": "all"}),
    ],
)
def test_every_sink_refuses_an_option_of_another_type_when_it_is_made(sink: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{list(options)[-1]} must be "):
        sink(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "orders"}, r"topics must be a list of text: topics=\['orders'\]"),
        ({"topics": [5]}, r"topics must be a list of text, or None, not \[5\]"),
        ({"topics": None}, r"give topics=\[...\] or pattern='...', one of the two"),
        ({"pattern": " "}, "pattern must be a regular expression such as"),
        ({"group_id": ""}, "group_id must be a name, not ''"),
        ({"start": "earliest"}, r"start must be one of StartFrom.group_offsets\(\), .*, or None, not 'earliest'"),
        ({"commit_offsets": "no"}, "commit_offsets must be True or False, or None, not 'no'"),
        ({"isolation": "committed"}, "isolation must be one of read_committed, read_uncommitted, not 'committed'"),
        ({"options": [("kafka.sasl.password", "s3cret")]}, "options must be a dict, or None, not list$"),
        ({"spark": "local"}, "spark must be a SparkSession, not str"),
    ],
)
def test_read_kafka_refuses_as_sinks_do(options: dict[str, Any], message: str) -> None:
    given = {"spark": SimpleNamespace(readStream=None), "bootstrap_servers": "h:9", "topics": ["t"], "group_id": "g"}
    with pytest.raises(ConfigError, match=f"^{message}"):
        hf.read_kafka(**{**given, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "big"}, 'size must be a size such as "128MB", "64MiB" or a number of bytes, or None, not .big.'),
        ({"age": True}, 'age must be a duration such as "90s", "15m", "1h" or seconds, or None, not True'),
        ({"inactivity": -1}, "inactivity must be a duration such as .*, or None, not -1"),
    ],
)
def test_rolling_refuses_by_the_options_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^rolling\.{message}"):
        hf.Rolling(**options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hf.session(5), "app_name must be a name, not 5"),
        (lambda: hf.session("x", kafka="yes"), "kafka must be True or False, not 'yes'"),
        (lambda: hf.session("x", state="hdfs"), "state must be one of rocksdb, or None, not 'hdfs'"),
        (lambda: hf.session("x", conf=[("a.password", "s3cret")]), "conf must be a dict, or None, not list$"),
        (lambda: hf.route("postgresql://me:s3cret@h"), "sink must be a sink, not str$"),
        (
            lambda: hf.route(hf.StdoutSink(), where=5),
            "where must be a predicate in Spark SQL such as .*, or None, not 5",
        ),
        (lambda: hf.route(hf.StdoutSink(), reject=" "), "reject must be a predicate in Spark SQL .*, not ' '"),
        (lambda: hf.route(hf.StdoutSink(), select=[]), r"select must be expressions in Spark SQL .*, not \[\]"),
        (lambda: hf.route(hf.StdoutSink(), select=["id", 5]), r"select must be .*, not \['id', 5\]"),
        (lambda: hf.from_debezium("rows", schema="id int"), "df must be a DataFrame, not str$"),
        (lambda: hf.TimeBucket(7), "TimeBucket.pattern must be folders of the form name=value, .*, not 7"),
        (lambda: hf.TimeBucket(column=7), "TimeBucket.column must be the name of a column, or None, not 7"),
        (lambda: hf.TimeBucket(timezone="Europe"), "TimeBucket.timezone must be a time zone such as .*, not 'Europe'"),
        (lambda: hf.StartFrom("soon"), "kind must be one of group_offsets, .*, not 'soon'"),
        (lambda: hf.StartFrom.group_offsets(5), "fallback must be one of earliest, latest, error, not 5"),
        (lambda: hf.StartFrom.timestamp("1"), "ms must be milliseconds since 1970, not '1'"),
        (lambda: hf.StartFrom.specific_offsets([("t", 0)]), r"offsets must be a dict, not \[\('t', 0\)\]"),
        (lambda: hf.StartFrom.specific_offsets({"t": 5}), "specific_offsets: t: 5 is not {partition: offset}"),
        (lambda: hf.FileCheckpointCommitter(5), "base_path must be text or a path, not 5"),
        (lambda: hf.SqlCheckpointCommitter(b"postgresql://me:s3cret@h/d"), "url must be a URL .*, not bytes$"),
        (
            lambda: hf.savepoint("ck", "to", keep=True),
            "keep must be a number of savepoints, at least 1, or None, not True",
        ),
        (lambda: hf.savepoint("ck", "to", stopped="no"), "stopped must be True or False, not 'no'"),
        (lambda: hf.checkpoints("ck", last=0), "last must be a whole number of at least 1, or None, not 0"),
        (lambda: hf.metrics("9000"), "port must be a number from 0 to 65535, not '9000'"),
        (lambda: hf.lineage("http://h", api_key=b"s3cret"), "api_key must be text, or None, not bytes$"),
        (lambda: hf.lineage("http://h", hide_also="x"), "hide_also must be a function, not 'x'"),
        (lambda: hf.traces(5), "endpoint must be the http:// or https:// address of a collector, or None, not 5"),
        (lambda: hf.read_whole_checkpoints("h:9", ""), "progress_topic must be a name, not ''"),
        (
            lambda: hf.read_whole_checkpoints("h:9", "p", after=True),
            "after must be the number of a checkpoint, or None",
        ),
        (lambda: hf.read_whole_checkpoints("h:9", "p", timeout="1"), "timeout must be a number of seconds, or None"),
    ],
)
def test_everything_else_that_is_public_refuses_as_sinks_do(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        call()


def test_no_error_quotes_a_secret() -> None:
    for make in (
        lambda: hf.KafkaSink("h:9092", "t", config=[("sasl.password", "s3cret")]),  # type: ignore[arg-type]
        lambda: hf.PostgresSink(b"postgresql://me:s3cret@h/d", "t"),  # type: ignore[arg-type]
        lambda: hf.CassandraSink(["h"], "k", "t", username="me", password=b"s3cret"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=r"must be .*, not (list|bytes)$") as caught:
            make()
        assert "s3cret" not in str(caught.value)


def test_the_schema_of_job_files_knows_what_is_allowed() -> None:
    schema = SINKS["postgres"].model_json_schema()["properties"]
    assert schema["mode"]["enum"] == ["ledger", "two-phase", "upsert", "append"]
    assert schema["schema_change"]["enum"] == ["freeze", "evolve", "discard-column"]
    assert schema["max_targets"]["minimum"] == 1
    job = job_model().model_json_schema()["properties"]
    assert job["delivery"]["enum"] == ["exactly-once", "at-least-once"] and job["history_retain"]["minimum"] == 1
    delivery = SINKS["kafka"].model_json_schema()["properties"]["delivery"]
    assert {"enum": ["none", "at-least-once", "exactly-once"], "type": "string"} in delivery["anyOf"]


@pytest.mark.parametrize("name", SINKS)
def test_the_command_line_shows_the_options_of_a_sink(name: str) -> None:
    result = CliRunner().invoke(app, ["schema", name, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["options"]
    known = options_of(SINKS[name].target)
    assert [option["name"] for option in found] == [option.name for option in known]
    assert all(option["help"] and "](" not in option["help"] for option in found)
    assert [option["takes"] for option in found] == [option.takes for option in known]


def test_the_command_line_shows_them_as_a_table_and_names_the_sinks_there_are() -> None:
    shown = CliRunner().invoke(app, ["schema", "sqlite"]).stdout
    assert '"ledger"' in shown and "one of" in shown and "schema_change" in shown
    wrong = CliRunner().invoke(app, ["schema", "oracle"])
    assert wrong.exit_code == 3 and "there are kafka, postgres, files, sqlite" in wrong.stderr


def test_a_duration_may_be_a_timedelta() -> None:
    sink = hf.SqliteSink("f", "t", mode="upsert", key=["k"], keep_deletes=timedelta(hours=2))
    assert sink.table.keep == 7200
