"""What the script that `holdfast new --compose-free` writes does: servers, rows to read, the environment of a job."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from holdfast.errors import HoldfastError
from holdfast.testing.servers.kafka import KafkaBroker

#: rows that are there at the start, and how many come each second
FIRST, A_SECOND = 1000, 10


def main(*, kafka: Sequence[str] = (), postgres: str | None = None, arguments: Sequence[str] | None = None) -> int:
    """Start servers, then run a command with their addresses in its environment, or wait for Ctrl-C; its exit code.

    `kafka` are topics, of which the first gets rows; `postgres` is the variable that gets the address of a database.
    """
    command = list(sys.argv[1:] if arguments is None else arguments)
    # Told to end while servers start: end what has started.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with servers(kafka, postgres) as environment:
            return _run(command, environment) if command else _wait(environment)
    except HoldfastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


@contextmanager
def servers(kafka: Sequence[str], postgres: str | None) -> Iterator[dict[str, str]]:
    """Real servers on loopback and free ports; ended by their process ids, and their folder is removed."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-servers-"))
    environment = {"HOLDFAST_DATA": str(folder / "data")}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if kafka:
            _say("starting Kafka; the first time its jars are fetched from Maven Central")
            broker = KafkaBroker(folder / "kafka", java=("-Xmx512m",))
            stack.callback(broker.stop)
            broker.start()
            environment["KAFKA"] = broker.bootstrap
            _make_topics(broker.bootstrap, kafka)
            stack.callback(Rows(broker.bootstrap, kafka[0]).stop)
        if postgres is not None:
            from holdfast.testing.servers.postgres import PostgresServer

            _say("starting PostgreSQL")
            server = PostgresServer()
            stack.callback(server.close)
            server.start()
            environment[postgres] = server.new_database()
        yield environment


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Ctrl-C goes to the command too, which ends by itself; a SIGTERM is passed on."""
    _say(f"running {shlex.join(command)}")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        preexec_fn=lambda: signal.signal(signal.SIGINT, before),
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    code = process.wait()
    _say("ending the servers")
    return code if code >= 0 else 128 - code


def _wait(environment: Mapping[str, str]) -> int:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    for name, value in environment.items():
        print(f"export {name}={shlex.quote(value)}", flush=True)
    _say("the servers run until Ctrl-C; set these in the shell of your job")
    while not ended.wait(0.5):
        pass
    return 0


class Rows:
    """Orders as JSON: a thousand at once, then some every second."""

    def __init__(self, servers: str, topic: str) -> None:
        from confluent_kafka import Producer

        self._producer, self._topic = Producer({"bootstrap.servers": servers}), topic
        self._ended, self.count = threading.Event(), 0
        self._send(FIRST)
        self._thread = threading.Thread(target=self._go_on, name="rows", daemon=True)
        self._thread.start()

    def _send(self, many: int) -> None:
        for _ in range(many):
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            row = {"id": self.count, "amount": self.count % 1000 / 10, "at": at}
            self._producer.produce(self._topic, json.dumps(row).encode())
            self.count += 1
        self._producer.flush(10)

    def _go_on(self) -> None:
        while not self._ended.wait(1.0):
            self._send(A_SECOND)

    def stop(self) -> None:
        """No more rows."""
        self._ended.set()
        self._thread.join(15)


def _make_topics(servers: str, topics: Sequence[str]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": servers})
    for made in client.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        made.result(30)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
