"""A real Kafka broker for tests: the one that is shipped for newcomers' jobs, too."""

from holdfast.testing.servers.kafka import KAFKA, KafkaBroker, free_port, new_cluster_id

__all__ = ["KAFKA", "KafkaBroker", "free_port", "new_cluster_id"]
