"""A work folder whose checkpoint is in a bucket: Spark's part by Hadoop's connector, ours by fsspec's client, with the
credentials that Spark was told.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from tests.crash.harness import Work
from tests.crash.processes import Driver
from tests.servers.object_store import StoreServer


class BucketWork(Work):
    """The input and the endpoints are files as ever."""

    def __init__(self, folder: Path, sink: str, server: StoreServer) -> None:
        super().__init__(folder, sink)
        self._server, self._bucket = server, f"crash-{uuid.uuid4().hex[:8]}"
        server.new_bucket(self._bucket)
        self.shared_conf = server.spark_conf()
        self._bad_days = server.bad_days()

    def start(self, fault: str = "", **spec: Any) -> Driver:
        """See Work."""
        conf = {**self.shared_conf, **spec.pop("conf", {})}
        return super().start(fault, checkpoint=self._server.location(self._bucket, "checkpoint"), conf=conf, **spec)

    def assert_clean(self, *, resent: int = 0) -> None:
        """See Work; and the store was as bad as it should be: a case that it spared shows nothing."""
        super().assert_clean(resent=resent)
        suffered = {name: count - self._bad_days[name] for name, count in self._server.bad_days().items()}
        assert all(suffered.values()), f"the proxy before the store struck too seldom: {suffered}"

    @property
    def log_folder(self) -> Path:
        """See Work; as it is in the bucket now."""
        copy = self.folder / "bucket"
        self._server.copy(self._bucket, "checkpoint/holdfast", copy)
        for name in ("decisions", "commits", "generations", "wal"):
            (copy / name).mkdir(parents=True, exist_ok=True)
        return copy
