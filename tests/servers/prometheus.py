"""Debian's Prometheus, scraping one endpoint, with rules: data in a folder of its own, on loopback."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from holdfast.testing.servers.kafka import free_port
from tests.servers.debian import program

_CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs: [{{job_name: holdfast, static_configs: [{{targets: ["{target}"]}}]}}]
"""


def binary() -> str:
    """Where Prometheus is; Debian starts it as a service, which we do not use."""
    return program("prometheus")


def promtool(*arguments: str) -> str:
    """What promtool says; it must find nothing wrong."""
    binary()
    done = subprocess.run([program("promtool", "prometheus"), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """One server, for as long as the block lasts."""

    def __init__(self, folder: Path, target: str, rules: Path) -> None:
        config = folder / "prometheus.yml"
        config.write_text(_CONFIG.format(rules=json.dumps(str(rules)), target=target))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [
            binary(), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]  # fmt: skip
        self._log = folder / "prometheus.log"

    def __enter__(self) -> Prometheus:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer; None while it starts."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise AssertionError(f"{address}: {error.read().decode()}") from error
        except urllib.error.URLError:
            return None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression gives now."""
        found = self.ask("query", query=expression)
        return [] if found is None else list(found["result"])

    def until(self, expression: str) -> list[dict[str, Any]]:
        """What an expression gives, as soon as it gives something."""
        deadline = time.monotonic() + 60
        while not (found := self.query(expression)):
            assert self._process.poll() is None and time.monotonic() < deadline, self._log.read_text()[-3000:]
            time.sleep(0.2)
        return found
