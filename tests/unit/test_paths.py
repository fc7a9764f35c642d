"""Every option that is a path takes a `pathlib.Path`, and means the same by it as by its text."""

import inspect
import re
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import errors
from holdfast.committers.cassandra_settings import make_settings
from holdfast.core.paths import path_text

#: public name and option -> what it makes of a path, as something to compare
OPTIONS = {
    "FileCheckpointCommitter.base_path": lambda path: hf.FileCheckpointCommitter(path).base_path,
    "SqliteSink.path": lambda path: hf.SqliteSink(path, "t").address,
    "FileSink.path": lambda path: hf.FileSink(path).address,
    "checkpoints.checkpoint_location": lambda path: hf.checkpoints(path),
    # tests/unit/test_savepoint.py gives both a Path in every test.
    "savepoint.checkpoint_location": None,
    "savepoint.target": None,
    # Not here: they need Spark. tests/integration/test_write_stream.py gives write_stream a Path in every test.
    "write_stream.checkpoint_location": None,
}


def test_every_public_option_that_is_a_path_is_in_this_table() -> None:
    found = set()
    for name in hf.__all__:
        public = getattr(hf, name)
        if (inspect.isclass(public) and issubclass(public, Exception | tuple)) or not callable(public):
            continue
        try:
            parameters = inspect.signature(public).parameters.values()
        except ValueError:  # a class without a signature of its own
            continue
        annotated = [p.name for p in parameters if re.search("AnyPath|PathLike", str(p.annotation))]
        named = [p.name for p in parameters if re.search("(^|_)(path|location|folder|file)$", p.name)]
        found |= {f"{name}.{option}" for option in (*annotated, *named)}
    # `Run` and `Task` are made by us, never by users; the committer's url is below.
    found -= {"Run.location", "Task.location", "SqlCheckpointCommitter.url"}
    assert found == set(OPTIONS)


@pytest.mark.parametrize("option", [name for name, make in OPTIONS.items() if make is not None])
def test_a_path_object_means_what_its_text_means(option: str, tmp_path: Path) -> None:
    place = tmp_path / "a place"
    assert OPTIONS[option](place) == OPTIONS[option](str(place))
    with pytest.raises(errors.ConfigError, match=re.escape(option.partition(".")[2])):
        OPTIONS[option](17)


def test_a_path_object_is_a_committers_sqlite_file(tmp_path: Path) -> None:
    place = tmp_path / "marks ? #.db"
    committer = hf.SqlCheckpointCommitter(place)
    assert committer._database.address == str(place)
    committer.set_job_id(f"p-{'0' * 32}")
    committer.set_operator_id("s")
    committer.create_resource()
    committer.open()
    committer.commit_checkpoint(0, 7)
    assert committer.is_checkpoint_committed(0, 7)
    committer.close()
    assert place.exists()


def test_paths_within_settings_of_clients_too(tmp_path: Path) -> None:
    place = tmp_path / "ca.pem"
    assert make_settings(["h"], 9042, None, None, {"ca": place}, None, 1.0).tls == (("ca", str(place)),)
    assert hf.KafkaSink("h:9092", "t", config={"ssl.ca.location": place})._config["ssl.ca.location"] == str(place)


def test_a_url_as_a_path_object_is_refused_because_it_has_lost_a_slash(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"path: 's3:/bucket/out' .* 's3://bucket/out'"):
        hf.FileSink(Path("s3://bucket/out"))
    with pytest.raises(errors.ConfigError, match="checkpoint_location"):
        hf.checkpoints(Path("s3a://bucket/checkpoint"))
    assert path_text("path", "s3://bucket/out") == "s3://bucket/out"


@pytest.mark.parametrize("nothing", ["", "  ", None, b"/tmp/x", "a\0b"])
def test_what_is_no_path_is_refused(nothing: object) -> None:
    with pytest.raises(errors.ConfigError, match=r"^option must be a path, not "):
        path_text("option", nothing)


def test_append_is_another_word_for_ledger(tmp_path: Path) -> None:
    for sink in (
        hf.SqliteSink(tmp_path / "out.db", "t", mode="append"),
        hf.PostgresSink("postgresql://h/d", "t", mode="append"),
    ):
        assert sink.mode == "ledger"
    with pytest.raises(errors.ConfigError, match="ledger, upsert, append, not 'apend'"):
        hf.SqliteSink(tmp_path / "out.db", "t", mode="apend")
    with pytest.raises(errors.ConfigError, match="ledger, two-phase, upsert, append"):
        hf.PostgresSink("postgresql://h/d", "t", mode="apend")
    with pytest.raises(errors.ConfigError, match="key and order_by belong to mode='upsert'"):
        hf.SqliteSink(tmp_path / "out.db", "t", mode="append", key=["id"])
