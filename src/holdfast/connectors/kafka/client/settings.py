"""Settings for Kafka clients: one set of user options, checked once, in the words of librdkafka."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.connectors.kafka.client import java, security
from holdfast.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

#: How long a secured client may take to log in before the caller's own request takes over.
LOGIN_TIMEOUT = 10.0
#: How long it goes on trying once every broker has dropped it.
DOWN_TIMEOUT = 3.0


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

    What only Java's client knows (`fetch.max.wait.ms`) is left out: librdkafka would refuse it, and it is Spark's. Of
    the security settings nothing is left out: one without a translation is an error that names it.
    """
    from holdfast.connectors.kafka.producer.library import takes

    # Spark's options know no case, and all of Kafka's are in small letters.
    given = {key.lower(): value for key, value in options.items()}
    config = java.translate({key.removeprefix("kafka."): v for key, v in given.items() if key.startswith("kafka.")})
    known = {key: value for key, value in config.items() if takes(key)}
    return {**known, "bootstrap.servers": servers, "log_level": 0}


def admin(config: Mapping[str, Any]) -> AdminClient:
    """An admin client, or the error that names the extra; a secured one has logged in, or says why it could not."""
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise MissingExtraError("Kafka needs more packages: pip install 'holdfast[kafka]'") from error
    problems: list[Any] = []
    secured = security.protocol(config) != "PLAINTEXT"
    try:
        client = AdminClient({**config, **({"error_cb": problems.append} if secured else {})})
    except KafkaException as error:
        text = security.without_secrets(error.args[0].str(), config)
        raise ConfigError(f"Kafka's client does not take these settings: {text}") from error
    if secured:
        _log_in(client, problems, config)
    return client


def _log_in(client: AdminClient, problems: list[Any], config: Mapping[str, Any]) -> None:
    """Without this a wrong password is tried again until the request times out, and only the timeout is told."""
    from confluent_kafka import KafkaError

    answer = client.describe_cluster(request_timeout=LOGIN_TIMEOUT)
    deadline = time.monotonic() + LOGIN_TIMEOUT
    down = False
    while not answer.done() and time.monotonic() < deadline:
        client.poll(0.02)
        for problem in problems:
            if problem.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or "SSL alert" in problem.str():
                raise login_error(problem.str(), config)
        if not down and any(problem.code() == KafkaError._ALL_BROKERS_DOWN for problem in problems):
            # Not about security, so far: a busy broker drops connections too, and tells the next one why. If they are
            # really away, the caller's request waits for them.
            down, deadline = True, time.monotonic() + DOWN_TIMEOUT


def login_error(text: str, config: Mapping[str, Any]) -> ConfigError:
    """What the broker or the library said, and which settings it is about."""
    user = f" as {config['sasl.username']!r}" if config.get("sasl.username") else ""
    return ConfigError(
        f"Kafka at {config['bootstrap.servers']} does not let this client in{user}: "
        f"{security.without_secrets(text, config)}. Check security.protocol, sasl.* and ssl.*"
    )
