"""Azure's blobs and Google's, each by an emulator: Azurite from npm, and fake-gcs-server, which is built with Go.

Both look whether a name is taken and create it in one step (tests/clouds/storage.py races for it).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from holdfast.spark.jars import Coordinate, cache_folder, fetch_jars
from tests.servers.object_store import StoreServer

_AZURITE, _FAKE_GCS = "3.35.0", "v1.56.1"
#: of the emulator; everybody knows them
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
HOST = f"{ACCOUNT}.dfs.core.windows.net"
#: Of the Hadoop that Spark 4.2 ships; what else the module names, Spark has.
ABFS = (
    Coordinate("org.apache.hadoop", "hadoop-azure", "3.5.0"),
    Coordinate("org.apache.hadoop.thirdparty", "hadoop-shaded-guava", "1.5.0"),
    Coordinate("org.hdrhistogram", "HdrHistogram", "2.1.12"),
    Coordinate("com.microsoft.azure", "azure-storage", "7.0.1"),
    Coordinate("org.wildfly.openssl", "wildfly-openssl", "2.2.5.Final"),
)
#: Google's own connector. Hadoop 3.5 has one too (hadoop-gcp), which fails without credentials.
GCS = (Coordinate("com.google.cloud.bigdataoss", "gcs-connector", "4.0.4", classifier="shaded"),)


class Azurite(StoreServer):
    """Azure's blobs; Spark reaches them by `abfs://`, over the blob endpoint: Azurite has no other."""

    kind = "azurite"

    def command(self, port: int) -> list[str]:
        """See StoreServer."""
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(self.folder / "data")]
        # The clients are newer than it is.
        return ["node", str(azurite()), *where, "--silent", "--disableTelemetry", "--skipApiVersionCheck"]

    def connection_string(self, endpoint: str | None = None) -> str:
        """What adlfs is told by AZURE_STORAGE_CONNECTION_STRING."""
        return f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint or self.endpoint}/{ACCOUNT}"

    def client(self) -> Any:
        """See StoreServer."""
        import adlfs

        told = self.connection_string(self.direct)
        return adlfs.AzureBlobFileSystem(connection_string=told, skip_instance_cache=True, use_listings_cache=False)

    def location(self, bucket: str, path: str) -> str:
        """See StoreServer."""
        return f"abfs://{bucket}@{HOST}/{path}"

    def spark_conf(self) -> dict[str, str]:
        """See StoreServer."""
        told = {
            f"account.key.{HOST}": KEY,
            "abfs.endpoint": self.endpoint.removeprefix("http://"),
            "fns.account.service.type": "BLOB",
            "account.hns.enabled": "false",
            "always.use.https": "false",
            # The other one wants TLS.
            "networking.library": "JDK_HTTP_URL_CONNECTION",
            # After a 503: most of the time of a case by default.
            "io.retry.min.backoff.interval": "50",
            "io.retry.backoff.interval": "50",
        }
        jars = ",".join(map(str, fetch_jars(ABFS)))
        return {"spark.jars": jars, **{f"spark.hadoop.fs.azure.{name}": value for name, value in told.items()}}


class FakeGcs(StoreServer):
    """Google's Cloud Storage."""

    kind = "fake-gcs"

    def command(self, port: int) -> list[str]:
        """See StoreServer."""
        where = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
        # Where it says that an upload goes on.
        return [
            str(fake_gcs()),
            *where,
            "-external-url",
            self.endpoint,
            "-public-host",
            self.endpoint.partition("//")[2],
        ]

    def client(self) -> Any:
        """See StoreServer."""
        from gcsfs.core import GCSFileSystem

        return GCSFileSystem(
            endpoint_url=self.direct, token="anon", project="p", skip_instance_cache=True, use_listings_cache=False
        )

    def location(self, bucket: str, path: str) -> str:
        """See StoreServer."""
        return f"gs://{bucket}/{path}"

    def new_bucket(self, name: str) -> None:
        """See StoreServer."""
        url, body = f"{self.direct}/storage/v1/b?project=p", json.dumps({"name": name}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    def spark_conf(self) -> dict[str, str]:
        """See StoreServer."""
        connector = "com.google.cloud.hadoop.fs.gcs.GoogleHadoop"
        told = {
            "fs.gs.impl": f"{connector}FileSystem",
            "fs.AbstractFileSystem.gs.impl": f"{connector}FS",
            "fs.gs.storage.root.url": f"{self.endpoint}/",
            "fs.gs.auth.type": "UNAUTHENTICATED",
            "fs.gs.project.id": "p",
            # The emulator does not have it; Google does.
            "fs.gs.operation.move.enable": "false",
            # Hadoop 3.5 has defaults for its own connector, such as 64m, that Google's takes for no number.
            "fs.gs.block.size": str(64 << 20),
            "fs.gs.rewrite.max.chunk.size": str(512 << 20),
            "fs.gs.outputstream.buffer.size": str(8 << 20),
            "fs.gs.inputstream.inplace.seek.limit": str(8 << 20),
            "fs.gs.inputstream.min.range.request.size": str(2 << 20),
        }
        jars = ",".join(map(str, fetch_jars(GCS)))
        return {"spark.jars": jars, **{f"spark.hadoop.{name}": value for name, value in told.items()}}


def azurite() -> Path:
    """The program of its blob service, fetched once for a machine."""
    folder = cache_folder() / "bin" / f"azurite-{_AZURITE}"
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(unfinished), f"azurite@{_AZURITE}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"Azurite comes from npm (Debian: nodejs, npm): {done.stderr[-2000:]}"
        try:
            unfinished.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    return folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def fake_gcs() -> Path:
    """The program, built once for a machine."""
    folder = cache_folder() / "bin" / f"fake-gcs-server-{_FAKE_GCS}"
    program = folder / "fake-gcs-server"
    if not program.exists():
        command = ["go", "install", f"github.com/fsouza/fake-gcs-server@{_FAKE_GCS}"]
        done = subprocess.run(command, env={**os.environ, "GOBIN": str(folder)}, capture_output=True, text=True)
        assert done.returncode == 0, f"fake-gcs-server needs Go to be built: {done.stderr[-2000:]}"
    return program
