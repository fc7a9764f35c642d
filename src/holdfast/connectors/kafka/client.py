"""Settings for Kafka clients: one set of user options, checked once, in the words of librdkafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

#: Spark's Kafka source takes Java's names behind `kafka.`; those of security have another name or form in librdkafka.
_JAVA_ONLY = ("ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type", "sasl.jaas.config")


def check_servers(servers: object) -> str:
    """`host:port[,host:port]`."""
    if not isinstance(servers, str) or not servers.strip():
        raise ConfigError(f"bootstrap_servers must be host:port[,host:port...], not {servers!r}")
    for server in servers.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not host or not colon or not port.isdigit():
            raise ConfigError(f"bootstrap_servers: {server.strip()!r} is not host:port")
    return servers


def client_config(servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Settings for a librdkafka client from the `kafka.*` options given to Spark's source.

    What only Java's client knows (`fetch.max.wait.ms`) is left out: librdkafka would refuse it, and it is Spark's.
    """
    from holdfast.connectors.kafka.rdkafka import takes

    config = {key.removeprefix("kafka."): value for key, value in options.items() if key.startswith("kafka.")}
    known = {key: value for key, value in config.items() if key not in _JAVA_ONLY and takes(key)}
    return {**known, "bootstrap.servers": servers, "log_level": 0}


def admin(config: Mapping[str, Any]) -> AdminClient:
    """An admin client, or the error that names the extra."""
    try:
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise MissingExtraError("Kafka needs more packages: pip install 'holdfast[kafka]'") from error
    return AdminClient(dict(config))
