"""Two independent S3 servers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.spark.jars import cache_folder
from tests.servers import s3a
from tests.servers.object_store import StoreServer

#: Of these Spark has its own.
_SPARKS = ("netty-buffer", "netty-codec", "netty-common", "netty-handler", "netty-resolver", "netty-transport", "slf4j")
_VERSITY = "v1.8.0"
KEY, SECRET = "holdfast-test", "holdfast-secret"


def s3a_jars() -> str:
    """For `spark.jars`."""
    found = {jar.name: jar for jar in s3a.jars() if not jar.name.startswith(_SPARKS)}
    return ",".join(str(jar) for jar in found.values())


class S3Server(StoreServer):
    """One of S3."""

    environment: Mapping[str, str] = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}

    def client(self) -> Any:
        """See StoreServer."""
        import s3fs

        return s3fs.S3FileSystem(
            key=KEY, secret=SECRET, endpoint_url=self.direct, skip_instance_cache=True, use_listings_cache=False,
            config_kwargs={"s3": {"addressing_style": "path"}},
        )  # fmt: skip

    def location(self, bucket: str, path: str) -> str:
        """See StoreServer."""
        return f"s3a://{bucket}/{path}"

    def spark_conf(self) -> dict[str, str]:
        """See StoreServer."""
        told = {
            "access.key": KEY,
            "secret.key": SECRET,
            "endpoint": self.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            # After a 503: half a second by default, which is most of the time of a case.
            "retry.throttle.interval": "50ms",
        }
        return {"spark.jars": s3a_jars(), **{f"spark.hadoop.fs.s3a.{name}": value for name, value in told.items()}}


class Moto(S3Server):
    """moto, see tests.servers.s3."""

    kind = "moto"

    def command(self, port: int) -> list[str]:
        """See S3Server."""
        return [sys.executable, "-m", "tests.servers.s3", str(port)]


class Versity(S3Server):
    """Versity's gateway to a file system, built once for a machine with Go."""

    kind = "versity"

    def command(self, port: int) -> list[str]:
        """See S3Server."""
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        return [str(versitygw()), "--port", f"127.0.0.1:{port}", "posix", str(data)]


def versitygw() -> Path:
    """The program."""
    folder = cache_folder() / "bin" / f"versitygw-{_VERSITY}"
    program = folder / "versitygw"
    if not program.exists():
        env = {**os.environ, "GOBIN": str(folder)}
        command = ["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{_VERSITY}"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"versitygw needs Go to be built: {done.stderr[-2000:]}"
    return program
