"""kafka-python's first connection: a client that is not let in says so at once, and its log shows no password."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from holdfast.connectors.kafka.client.security import protocol, without_secrets
from holdfast.connectors.kafka.client.settings import LOGIN_TIMEOUT, admin, login_error


def connect(manager: Any, config: Mapping[str, Any], *, timeout_ms: int, first: bool = True) -> None:
    """Find the brokers. By itself the manager tries a wrong password until the timeout, and tells only the timeout.

    Brokers that do not answer are a KafkaTimeoutError, with what went wrong before that.
    """
    from kafka.errors import KafkaTimeoutError

    hide_wire_dumps()
    problem = ""
    if protocol(config) != "PLAINTEXT":
        if first:
            # librdkafka first: a broker may hang up on a wrong password before kafka-python has read why.
            admin(config)
        problem = manager.run(_log_in, manager, config, timeout_ms)
    try:
        manager.bootstrap(timeout_ms=timeout_ms)
    except KafkaTimeoutError as error:
        raise KafkaTimeoutError(f"no broker was found{problem}") from error


async def _log_in(manager: Any, config: Mapping[str, Any], timeout_ms: int) -> str:
    """Connect to one of the brokers; ConfigError when it does not let us in, else what went wrong last, if anything."""
    from kafka.errors import KafkaError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError

    problem = ""
    for broker in manager.cluster.bootstrap_brokers():
        timeout = min(LOGIN_TIMEOUT * 1000, timeout_ms)
        try:
            await manager.get_connection(broker.node_id, timeout_ms=timeout, refresh_metadata_on_err=False)
        except (SaslAuthenticationFailedError, UnsupportedSaslMechanismError) as error:
            raise login_error(str(error), config) from error
        except (KafkaError, OSError) as error:
            if "CERTIFICATE" in str(error):
                raise login_error(str(error), config) from error
            problem = f": {without_secrets(f'{type(error).__name__}: {error}', config)}"
        else:
            return ""
    return problem


def hide_wire_dumps() -> None:
    """kafka-python's debug log repeats every byte it sends, and PLAIN sends the password."""
    for name in ("kafka.protocol.parser", "kafka.net.connection"):
        logging.getLogger(name).addFilter(_not_debug)


def _not_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG
