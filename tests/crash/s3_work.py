"""A work folder whose checkpoint is in a bucket: Spark's part by `s3a://`, ours by s3fs, with Spark's credentials."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from tests.crash.harness import Work
from tests.crash.processes import Driver
from tests.servers.s3_stores import KEY, SECRET, S3Server, s3a_jars


class S3Work(Work):
    """The input and the endpoints are files as ever."""

    def __init__(self, folder: Path, sink: str, server: S3Server) -> None:
        super().__init__(folder, sink)
        self._server, self._bucket = server, f"crash-{uuid.uuid4().hex[:8]}"
        server.new_bucket(self._bucket)

    def start(self, fault: str = "", **spec: Any) -> Driver:
        """See Work."""
        s3a = {
            "access.key": KEY,
            "secret.key": SECRET,
            "endpoint": self._server.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            # After a 503: half a second by default, which is most of the time of a case.
            "retry.throttle.interval": "50ms",
        }
        conf = {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}
        conf = {**conf, "spark.jars": s3a_jars(), **spec.pop("conf", {})}
        return super().start(fault, checkpoint=f"s3a://{self._bucket}/checkpoint", conf=conf, **spec)

    @property
    def log_folder(self) -> Path:
        """See Work; as it is in the bucket now."""
        copy = self.folder / "bucket"
        self._server.copy(f"{self._bucket}/checkpoint/holdfast", copy)
        for name in ("decisions", "commits", "generations", "wal"):
            (copy / name).mkdir(parents=True, exist_ok=True)
        return copy
