"""A server of an object store, alone or behind a proxy that is slow and answers 503 now and then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers.kafka import free_port
from tests.servers.s3_proxy import COUNTS

ROOT = Path(__file__).parents[2]


class StoreServer:
    """A server and its proxy; ended by process id."""

    kind = ""
    #: what the server is told besides
    environment: Mapping[str, str] = {}

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
        if proxied:
            self.endpoint = f"http://127.0.0.1:{front}"
        self._launch("server", self.command(port), self.direct)
        if proxied:
            proxy = [sys.executable, "-m", "tests.servers.s3_proxy", str(front), f"127.0.0.1:{port}"]
            self._launch("proxy", proxy, self.endpoint)

    def _launch(self, name: str, command: list[str], url: str) -> None:
        env = {**os.environ, **self.environment, "PYTHONPATH": str(ROOT)}
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
                    text = log.read_text(errors="replace")
                    raise AssertionError(f"the {name} of {self.kind} did not start ({error}): {text}") from error
            time.sleep(0.1)

    def stop(self, *, kill: bool = True) -> None:
        """End both."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()

    def bad_days(self) -> dict[str, int]:
        """How many requests the proxy has refused, and how many it has done and not told."""
        with urllib.request.urlopen(f"{self.endpoint}{COUNTS}", timeout=30) as answer:
            counts: dict[str, int] = json.load(answer)
        return counts

    # -- what is in it ----------------------------------------------------------------------------------------------

    def client(self) -> Any:
        """An fsspec client of the server itself, not of the proxy."""
        raise NotImplementedError

    def location(self, bucket: str, path: str) -> str:
        """The URL that Spark and holdfast are given."""
        raise NotImplementedError

    def spark_conf(self) -> dict[str, str]:
        """How Spark reaches it."""
        raise NotImplementedError

    def new_bucket(self, name: str) -> None:
        """Make one."""
        self.client().mkdir(name)

    def copy(self, bucket: str, path: str, folder: Path) -> None:
        """What is below a path, as files."""
        client, location = self.client(), f"{bucket}/{path}"
        shutil.rmtree(folder, ignore_errors=True)
        for found in client.find(location):
            if not found.endswith("/"):
                target = folder / found.removeprefix(location).lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(client.cat_file(found))
