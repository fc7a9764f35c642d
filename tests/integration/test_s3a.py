"""`s3a://` on real Spark: driver and tasks reach the store as Spark was told to."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.checkpoint import s3a
from holdfast.checkpoint.object_store import ObjectStorage

pytestmark = pytest.mark.spark


@pytest.fixture
def server(tmp_path: Path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path / "moto.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            for _ in range(300):
                try:
                    put = urllib.request.Request(f"http://127.0.0.1:{port}/shop", method="PUT")
                    urllib.request.urlopen(put, timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            else:
                pytest.fail(f"moto_server did not start: {(tmp_path / 'moto.log').read_text()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def test_tasks_and_driver_write_to_s3a_with_sparks_credentials(spark, tmp_path, server) -> None:
    settings = {"access.key": "from-spark", "secret.key": "hidden", "endpoint": server, "path.style.access": "true"}
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        for name, value in settings.items():
            configuration.set(f"fs.s3a.{name}", value)
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.json").write_text("".join(json.dumps({"id": i}) + "\n" for i in range(10)))
        frame = spark.readStream.schema("id long").json(str(tmp_path / "in")).repartition(2)
        sink = hf.FileSink("s3a://shop/out", format="json")
        query = hf.write_stream(frame, sink, name="s3a", checkpoint_location=str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        storage = ObjectStorage("s3a://shop/out")
        rows = [json.loads(x) for n in storage.walk("") if n.endswith(".json") for x in storage.read(n).splitlines()]
        assert sorted(row["id"] for row in rows) == list(range(10))
    finally:
        for name in settings:
            configuration.unset(f"fs.s3a.{name}")
        s3a.use({})
