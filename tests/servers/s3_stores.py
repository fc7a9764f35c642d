"""Two independent S3 servers, alone or behind a proxy that is slow and answers 503 now and then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from holdfast.spark.jars import cache_folder
from tests.servers import s3a
from tests.servers.kafka import free_port

ROOT = Path(__file__).parents[2]
#: Of these Spark has its own.
_SPARKS = ("netty-buffer", "netty-codec", "netty-common", "netty-handler", "netty-resolver", "netty-transport", "slf4j")
_VERSITY = "v1.8.0"
KEY, SECRET = "holdfast-test", "holdfast-secret"


def s3a_jars() -> str:
    """For `spark.jars`."""
    found = {jar.name: jar for jar in s3a.jars() if not jar.name.startswith(_SPARKS)}
    return ",".join(str(jar) for jar in found.values())


class S3Server:
    """A server and its proxy; ended by process id."""

    kind = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._processes: list[subprocess.Popen[bytes]] = []
        #: what everybody uses; and the server itself, for those who look afterwards
        self.endpoint = self.direct = ""

    def command(self, port: int) -> list[str]:
        """What starts it."""
        raise NotImplementedError

    def start(self, *, proxied: bool = True) -> None:
        """The server, then the proxy; one that does not start is a failure."""
        port, front = free_port(), free_port()
        self.direct = self.endpoint = f"http://127.0.0.1:{port}"
        self._launch("server", self.command(port), self.direct)
        if not proxied:
            return
        self.endpoint = f"http://127.0.0.1:{front}"
        proxy = [sys.executable, "-m", "tests.servers.s3_proxy", str(front), f"127.0.0.1:{port}"]
        self._launch("proxy", proxy, self.endpoint)

    def _launch(self, name: str, command: list[str], url: str) -> None:
        env = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET, "PYTHONPATH": str(ROOT)}
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
        self._processes.append(process)
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return
            except urllib.error.HTTPError:
                return  # it answers
            except OSError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the S3 {name} did not start ({error}): {log.read_text()}") from error
            time.sleep(0.1)

    def stop(self, *, kill: bool = True) -> None:
        """End both."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()

    # -- what is in it ----------------------------------------------------------------------------------------------

    def _client(self) -> object:
        import s3fs

        return s3fs.S3FileSystem(
            key=KEY, secret=SECRET, endpoint_url=self.direct, skip_instance_cache=True, use_listings_cache=False,
            config_kwargs={"s3": {"addressing_style": "path"}},
        )  # fmt: skip

    def new_bucket(self, name: str) -> None:
        """Make one."""
        self._client().mkdir(name)  # type: ignore[attr-defined]

    def copy(self, location: str, folder: Path) -> None:
        """What is below a location, as files."""
        client = self._client()
        shutil.rmtree(folder, ignore_errors=True)
        for path in client.find(location):  # type: ignore[attr-defined]
            if not path.endswith("/"):
                target = folder / path.removeprefix(location).lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(client.cat_file(path))  # type: ignore[attr-defined]


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
