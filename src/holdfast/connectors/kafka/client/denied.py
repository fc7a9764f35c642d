"""Kafka's refusals in words: who lacks which right on what, and the command that grants it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

#: Kafka's error codes
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 29, 30, 31, 53
DENIED = (TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID)


def denied(
    code: int,
    what: str,
    config: Mapping[str, Any],
    *,
    rights: str = "",
    topic: str | None = None,
    group: str | None = None,
    transactional_id: str | None = None,
) -> ConfigError | None:
    """The error for one of DENIED, None for any other code. `rights` are those to grant, as `kafka-acls` names them."""
    if code not in DENIED:
        return None
    user = _principal(config)
    if code == CLUSTER:
        resource, rights, option = "the cluster", rights or "IdempotentWrite", "--cluster"
    elif code == TRANSACTIONAL_ID:
        resource, rights = f"transactional id {transactional_id!r}", rights or "Write"
        option = f"--transactional-id {_prefix(transactional_id)} --resource-pattern-type prefixed"
    elif code == GROUP:
        resource, rights = f"group {group!r}", rights or "Read"
        own = str(group).startswith("hf")
        option = f"--group {_prefix(group) + ' --resource-pattern-type prefixed' if own else group}"
    else:
        resource, rights = f"topic {topic!r}" if topic else "a topic of this sink", rights or "Read Write"
        option = f"--topic {topic or 'TOPIC'}"
    operations = " ".join(f"--operation {right}" for right in rights.split())
    names = " and ".join(right.upper() for right in rights.split())
    return ConfigError(
        f"Kafka refused to {what}: {user or 'this client'} has no right to {names} on {resource}. Grant it: "
        f"kafka-acls.sh --bootstrap-server {config.get('bootstrap.servers', 'BROKER')} --add "
        f"--allow-principal {user or 'User:NAME'} {operations} {option} (all rights: docs/kafka.md)"
    )


def check_readable(client: AdminClient, config: Mapping[str, Any], topics: list[str], *, right: str = "Read") -> None:
    """READ, or another right, on these topics, before tasks find that it is missing.

    A broker that does not tell is believed.
    """
    from confluent_kafka import KafkaException, TopicCollection
    from confluent_kafka.admin import AclOperation

    asked = client.describe_topics(TopicCollection(topics), include_authorized_operations=True, request_timeout=30)
    for topic, answer in asked.items():
        try:
            allowed = answer.result().authorized_operations
        except KafkaException as error:
            refused = denied(error.args[0].code(), "describe a topic", config, rights=right, topic=topic)
            raise SourceError(str(refused or f"topic {topic!r} cannot be read: {error.args[0].str()}")) from error
        if allowed and AclOperation[right.upper()] not in allowed:
            raise SourceError(str(denied(TOPIC, f"{right.lower()} a topic", config, rights=right, topic=topic)))


def _principal(config: Mapping[str, Any]) -> str | None:
    """As far as the client knows: with certificates it is the broker that derives a name from the subject."""
    sasl = str(config.get("security.protocol", "")).upper().startswith("SASL")
    return f"User:{config['sasl.username']}" if sasl and config.get("sasl.username") else None


def _prefix(name: str | None) -> str:
    """What all ids and groups of one sink begin with: kind, pipeline, sink; none of them contains a dash."""
    parts = str(name).split("-")
    return f"{'-'.join(parts[:3])}-" if len(parts) > 3 else str(name)
