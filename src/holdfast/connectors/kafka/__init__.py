"""Kafka: the source's manners, and the sinks."""
