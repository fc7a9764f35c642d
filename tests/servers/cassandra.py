"""A real Cassandra for tests, one node or two: jars from Maven Central, data in a temporary folder, on loopback.

Passwords are checked, and TLS is offered on the same port, so that every test goes through the one and any test can go
through the other.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.spark.jars import Coordinate, fetch_jars
from holdfast.testing.servers.starting import comes_up
from tests.servers.kafka import free_port

CASSANDRA = (Coordinate("org.apache.cassandra", "cassandra-all", "5.0.9", transitive=True),)
DATACENTER = "datacenter1"
_OPENED = (
    "java.base/sun.nio.ch", "java.base/jdk.internal.ref", "java.base/java.io", "java.base/jdk.internal.misc",
    "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.management.rmi/com.sun.jmx.remote.internal.rmi",
)  # fmt: skip
_SYSTEM = {
    "cassandra-foreground": "yes",
    "cassandra.skip_wait_for_gossip_to_settle": "0",
    "cassandra.ring_delay_ms": "0",
    "cassandra.superuser_setup_delay_ms": "0",
    "cassandra.auth_bcrypt_gensalt_log2_rounds": "4",
    "java.net.preferIPv4Stack": "true",
}
_LOGBACK = """<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder>
<pattern>%-5level %date %logger{20} %msg%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="out"/></root></configuration>
"""
_YAML = """
cluster_name: holdfast
num_tokens: 1
initial_token: {token}
auto_bootstrap: false
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "127.0.0.1:{storage}"}}]
listen_address: {address}
rpc_address: {address}
storage_port: {storage}
ssl_storage_port: {storage_tls}
native_transport_port: {port}
start_native_transport: true
authenticator: {authenticator}
authorizer: {authorizer}
client_encryption_options: {{enabled: true, optional: true, keystore: "{keystore}", keystore_password: holdfast}}
data_file_directories: ["{data}/data"]
commitlog_directory: {data}/commitlog
saved_caches_directory: {data}/saved_caches
hints_directory: {data}/hints
cdc_raw_directory: {data}/cdc_raw
commitlog_sync: group
commitlog_sync_group_window: 5ms
commitlog_segment_size: 4MiB
memtable_heap_space: 32MiB
memtable_allocation_type: heap_buffers
hinted_handoff_enabled: false
{more}
disk_optimization_strategy: ssd
"""


class CassandraServer:
    """Start, kill, restart; ended by its process id."""

    def __init__(self, folder: Path, *, beside: CassandraServer | None = None, alone: bool = True) -> None:
        """`beside` is the first node of a cluster that this one joins; one that is not `alone` lets everybody in.

        The roles of a cluster are on one node by default, and nobody could log in while that one is away.
        """
        self.folder = folder
        self.port, self._storage, self._storage_tls = free_port(), free_port(), free_port()
        self.address, self._passwords = "127.0.0.1", alone
        if beside is not None:
            self.address, self._passwords = "127.0.0.2", False
            self.port, self._storage, self._storage_tls = beside.port, beside._storage, beside._storage_tls
        self._jars = ":".join(str(jar) for jar in fetch_jars(CASSANDRA))
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        #: the certificate it shows, for clients that use TLS
        self.certificate = folder / "server.pem"
        self._make_certificate()
        (folder / "logback.xml").write_text(_LOGBACK)
        (folder / "cassandra.yaml").write_text(
            _YAML.format(
                storage=self._storage, storage_tls=self._storage_tls, port=self.port, data=folder / "data",
                keystore=folder / "server.p12", address=self.address, token=0 if beside is None else 2**62,
                authenticator="PasswordAuthenticator" if self._passwords else "AllowAllAuthenticator",
                authorizer="CassandraAuthorizer" if self._passwords else "AllowAllAuthorizer",
                more="" if self._passwords else "write_request_timeout: 1000ms",
            )
        )  # fmt: skip

    @property
    def options(self) -> dict[str, Any]:
        """Where it is and who may enter: for CassandraSink and CassandraCheckpointCommitter."""
        login = {"username": "cassandra", "password": "cassandra"} if self._passwords else {}
        return {"contact_points": [self.address], "port": self.port, **login}

    @property
    def down(self) -> bool:
        """Whether it was stopped."""
        return self._process is None

    def start(self, timeout: float = 120) -> None:
        """Start it and wait until it answers; a server that does not is an error, never a skipped test."""
        system = {
            **_SYSTEM,
            "cassandra.config": (self.folder / "cassandra.yaml").as_uri(),
            "cassandra.storagedir": str(self.folder / "data"),
            "cassandra.logdir": str(self.folder),
            "logback.configurationFile": str(self.folder / "logback.xml"),
        }
        command = [_java("java"), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self._jars]
        command += [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
        command += [f"-D{key}={value}" for key, value in system.items()]
        command.append("org.apache.cassandra.service.CassandraDaemon")
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True)
        if comes_up(self._process, self._answers, timeout):
            return
        self.stop(kill=True)
        raise AssertionError(f"Cassandra did not start:\n{(self.folder / 'server.log').read_text()[-3000:]}")

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

    @contextmanager
    def hung(self) -> Iterator[None]:
        """It is there and does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def execute(
        self, statement: str, values: tuple[Any, ...] = (), *, consistency: int | None = None
    ) -> list[dict[str, Any]]:
        """Run one statement in a connection of its own; rows as dicts."""
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import WhiteListRoundRobinPolicy
        from cassandra.query import SimpleStatement, dict_factory

        profile = ExecutionProfile(
            WhiteListRoundRobinPolicy([self.address]), row_factory=dict_factory, request_timeout=60
        )
        cluster = Cluster(
            [self.address], self.port, protocol_version=4, execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            auth_provider=PlainTextAuthProvider("cassandra", "cassandra") if self._passwords else None,
        )  # fmt: skip
        try:
            asked = SimpleStatement(statement, consistency_level=consistency)
            return list(cluster.connect().execute(asked, values or None))
        finally:
            cluster.shutdown()

    def _answers(self) -> bool:
        from cassandra import DriverException
        from cassandra.cluster import NoHostAvailable

        try:
            return bool(self.execute("SELECT release_version FROM system.local"))
        except (NoHostAvailable, DriverException):
            return False

    def _make_certificate(self) -> None:
        store = ["-keystore", str(self.folder / "server.p12"), "-storetype", "PKCS12", "-storepass", "holdfast"]
        keytool = [_java("keytool"), "-noprompt", *store, "-alias", "server"]
        make = ["-genkeypair", "-keyalg", "EC", "-dname", "CN=localhost", "-ext", "SAN=dns:localhost,ip:127.0.0.1"]
        subprocess.run([*keytool, *make, "-validity", "3650"], check=True, capture_output=True)
        show = ["-exportcert", "-rfc", "-file", str(self.certificate)]
        subprocess.run([*keytool, *show], check=True, capture_output=True)


def _java(tool: str) -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/{tool}" if home else shutil.which(tool) or tool
