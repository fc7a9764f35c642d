"""`s3a://` on real Spark: driver and tasks reach the store as Spark was told to."""

from __future__ import annotations

import json

import pytest

import holdfast as hf
from holdfast.checkpoint import hadoop
from holdfast.checkpoint.object_store import ObjectStorage

pytestmark = pytest.mark.spark


def test_tasks_and_driver_write_to_s3a_with_sparks_credentials(spark, tmp_path, s3_server, bucket, monkeypatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    settings = {"access.key": "from-spark", "secret.key": "hidden", "endpoint": s3_server, "path.style.access": "true"}
    account = "fs.azure.account.key.acme.dfs.core.windows.net"
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        for name, value in settings.items():
            configuration.set(f"fs.s3a.{name}", value)
        configuration.set(account, "of-azure")
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.json").write_text("".join(json.dumps({"id": i}) + "\n" for i in range(10)))
        frame = spark.readStream.schema("id long").json(str(tmp_path / "in")).repartition(2)
        sink = hf.FileSink(f"s3a://{bucket}/out", format="json")
        query = hf.write_stream(frame, sink, name="s3a", checkpoint_location=str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        storage = ObjectStorage(f"s3a://{bucket}/out")
        rows = [json.loads(x) for n in storage.walk("") if n.endswith(".json") for x in storage.read(n).splitlines()]
        assert sorted(row["id"] for row in rows) == list(range(10))
        assert hadoop.given()[account] == "of-azure"
    finally:
        for name in settings:
            configuration.unset(f"fs.s3a.{name}")
        configuration.unset(account)
        hadoop.use({})
