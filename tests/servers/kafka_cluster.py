"""Three real Kafka brokers (KRaft, each broker and controller), replication 3, on loopback: one may always be away."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.servers.kafka import KafkaBroker, free_port, new_cluster_id

#: Small and soon ready: three JVMs share two cores with Spark.
JAVA = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
PROPERTIES = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "controller.quorum.election.timeout.ms": "1000",
    # How soon the others notice that one is dead; 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "controlled.shutdown.retry.backoff.ms": "500",
}


class KafkaCluster:
    """Started together; each broker is stopped, killed and started by its own process id."""

    def __init__(self, folder: Path) -> None:
        ports = [(free_port(), free_port()) for _ in range(3)]
        voters = ",".join(f"{node}@127.0.0.1:{controller}" for node, (_, controller) in enumerate(ports, 1))
        name = new_cluster_id()

        def make(node: int) -> KafkaBroker:
            return KafkaBroker(
                folder / str(node),
                node=node,
                ports=ports[node - 1],
                cluster_id=name,
                java=JAVA,
                **{**PROPERTIES, "controller.quorum.voters": voters},
            )

        with ThreadPoolExecutor() as pool:
            self.brokers = list(pool.map(make, (1, 2, 3)))

    @property
    def bootstrap(self) -> str:
        """For bootstrap.servers: all three."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start all and wait until every one answers and knows the others."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda broker: broker.start(), self.brokers))
        self.wait()

    def stop(self) -> None:
        """End all: at the end of a session nobody waits for a clean shutdown."""
        for broker in self.brokers:
            broker.stop(kill=True)

    def restart(self, broker: KafkaBroker, *, kill: bool = False, away: float = 0.0) -> None:
        """One broker ends, is away for so many seconds, and comes back; returns when all partitions are in sync."""
        broker.stop(kill=kill)
        time.sleep(away)
        broker.start()
        self.wait()

    def wait(self, timeout: float = 90) -> None:
        """Until every replica of every partition is in sync: then the next broker may go."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                found = admin.list_topics(timeout=2)
            except KafkaException:  # not up yet
                continue
            partitions = [p for topic in found.topics.values() for p in topic.partitions.values()]
            if len(found.brokers) == 3 and all(len(p.isrs) == len(p.replicas) and p.leader >= 0 for p in partitions):
                return
            time.sleep(0.2)
        raise AssertionError("the cluster is not whole again")
