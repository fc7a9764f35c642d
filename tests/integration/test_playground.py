"""The servers of `holdfast new --compose-free`: real ones, with rows, for the length of a command (R1)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.pipeline.templates import servers_script

#: what a job would find: an address of each server, rows in the topic, and who to wait for
COMMAND = """
    import json, os, psycopg
    from pathlib import Path
    from confluent_kafka import Consumer
    consumer = Consumer({"bootstrap.servers": os.environ["KAFKA"], "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    rows = []
    while len(rows) < 1000:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            rows.append(json.loads(message.value())["id"])
    consumer.close()
    with psycopg.connect(os.environ["SHOP_DSN"]) as connection:
        version = connection.info.server_version
    print(json.dumps({"rows": len(set(rows)), "postgres": version, "data": os.environ["HOLDFAST_DATA"]}))
    raise SystemExit(7)
"""


@pytest.mark.contract("R1")
def test_servers_live_as_long_as_the_command(tmp_path: Path) -> None:
    script = servers_script("kafka-to-postgres", "job.yaml", "servers.py")
    assert script is not None
    (tmp_path / "servers.py").write_text(script)
    (tmp_path / "command.py").write_text(textwrap.dedent(COMMAND))
    done = subprocess.run(
        [sys.executable, "servers.py", sys.executable, "command.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 7, done.stderr  # the command's own
    found = json.loads(done.stdout)
    assert found["rows"] == 1000 and found["postgres"] > 150000
    assert not Path(found["data"]).parent.exists()
    left = subprocess.run(["pgrep", "-f", Path(found["data"]).parent.name], capture_output=True, text=True, check=False)
    assert left.stdout == ""  # no server is left


def test_without_a_command_they_run_until_they_are_told(tmp_path: Path) -> None:
    start = "import sys; from holdfast.testing.servers.playground import main; sys.exit(main(postgres='SHOP_DSN'))"
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = dict(process.stdout.readline().strip().removeprefix("export ").split("=", 1) for _ in range(2))
        assert told["SHOP_DSN"].strip("'").startswith("postgresql://holdfast:")
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(120) == 0
    assert not Path(told["HOLDFAST_DATA"]).parent.exists()
