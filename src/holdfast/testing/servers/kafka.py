"""A real Kafka broker (KRaft, one node): jars from Maven Central, data in a temporary folder, on loopback."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from holdfast.errors import HoldfastError
from holdfast.spark.jars import Coordinate, fetch_jars
from holdfast.testing.servers.starting import comes_up

KAFKA = (Coordinate("org.apache.kafka", "kafka_2.13", "4.3.1", transitive=True),)


#: ports that this process has given to a server, which may not listen yet
_given: set[int] = set()


def free_port() -> int:
    """A port nobody listens on right now; never the same twice."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


def new_cluster_id() -> str:
    """As `kafka-storage random-uuid` makes them, without a JVM; never with a dash in front."""
    return "h" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


class KafkaBroker:
    """Start, kill, restart; ended by its process id."""

    def __init__(
        self,
        folder: Path,
        *,
        more_listeners: Mapping[str, int] = MappingProxyType({}),
        format_arguments: Sequence[str] = (),
        node: int = 1,
        ports: tuple[int, int] | None = None,
        cluster_id: str | None = None,
        java: Sequence[str] = ("-Xmx1g",),
        **properties: str,
    ) -> None:
        self.folder, self.node, self._options = folder, node, java
        self.port, self._controller = ports or (free_port(), free_port())
        self._classes = ":".join(str(jar) for jar in fetch_jars(KAFKA))
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._properties = folder / "server.properties"
        open_to = {"PLAINTEXT": self.port, **more_listeners}
        addresses = [f"{name}://127.0.0.1:{port}" for name, port in open_to.items()]
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "listeners": ",".join([*addresses, f"CONTROLLER://127.0.0.1:{self._controller}"]),
            "advertised.listeners": ",".join(addresses),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"{node}@127.0.0.1:{self._controller}",
            "listener.security.protocol.map": ",".join(f"{n}:{n}" for n in open_to) + ",CONTROLLER:PLAINTEXT",
            "log.dirs": str(folder / "data"),
            "num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            # Transactions past their timeout are looked for every 10 s by default.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            **properties,
        }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._tool("format", "-t", cluster_id or new_cluster_id(), "-c", str(self._properties), *format_arguments)

    @property
    def bootstrap(self) -> str:
        """For bootstrap.servers."""
        return f"127.0.0.1:{self.port}"

    def start(self, timeout: float = 120) -> None:
        """Start it and wait until it answers."""
        self.launch()
        assert self._process is not None
        if comes_up(self._process, self._answers, timeout):
            return
        self.stop(kill=True)
        raise HoldfastError(f"Kafka did not start:\n{(self.folder / 'broker.log').read_text()[-3000:]}")

    def launch(self) -> None:
        """Start it without waiting."""
        command = [*self._command(*self._options), "kafka.Kafka", str(self._properties)]
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    @property
    def running(self) -> bool:
        """Whether its process is there, and not being stopped."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process of a broker that was started."""
        assert self._process is not None
        return self._process.pid

    def stop(self, *, kill: bool = False) -> None:
        """End it, and wait until it is gone."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _answers(self) -> bool:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            return self.node in admin.list_topics(timeout=1).brokers
        except Exception:  # noqa: BLE001  not up yet; the caller has a deadline
            return False

    def _tool(self, *arguments: str) -> str:
        quick = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        command = [*self._command(*quick), "kafka.tools.StorageTool", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise HoldfastError(f"Kafka's {arguments[0]} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
        return done.stdout

    def _command(self, *options: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else shutil.which("java") or "java"
        return [java, *options, "-cp", self._classes]
