"""Security settings of Spark's Kafka source (Java's names) in librdkafka's words, for the clients beside the source.

librdkafka's own names behind `kafka.` win: Java's client ignores them, so they are the way out where Java's have no
translation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.connectors.kafka.client.security import protocol
from holdfast.errors import ConfigError

#: Java's names that librdkafka does not have, or that mean something else there.
_JAVA_ONLY = (
    "sasl.jaas.config", "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type",
    "ssl.truststore.certificates", "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type",
    "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.cipher.suites", "ssl.endpoint.identification.algorithm",
)  # fmt: skip
_MODULES = ("PlainLoginModule", "ScramLoginModule")
_TOKEN = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s=;"']+)|([=;]))""", re.S)


def translate(java: Mapping[str, str]) -> dict[str, Any]:
    """Without the `kafka.` in front; what only Java's client knows and is not about security is kept as it is."""
    config: dict[str, Any] = {key: value for key, value in java.items() if key not in _JAVA_ONLY}
    name = protocol(java)
    if name.startswith("SASL"):
        config = {**_login(java, config), **config}
    if name.endswith("SSL"):
        algorithm = java.get("ssl.endpoint.identification.algorithm")
        if algorithm is not None:
            config["ssl.endpoint.identification.algorithm"] = algorithm or "none"
        config = {**_truststore(java, config), **_keystore(java, config), **config}
    return config


def _login(java: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    mechanism = str(given.get("sasl.mechanism", given.get("sasl.mechanisms", "GSSAPI")))
    if mechanism == "GSSAPI" or ("sasl.username" in given and "sasl.password" in given):
        return {}
    way_out = "give kafka.sasl.username and kafka.sasl.password too, which Spark ignores"
    if mechanism != "PLAIN" and not mechanism.startswith("SCRAM-"):
        raise ConfigError(
            f"kafka.sasl.mechanism {mechanism!r} is Spark's only: holdfast's own client, which resolves the start and "
            "commits group offsets, knows PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and certificates"
        )
    if "sasl.jaas.config" not in java:
        raise ConfigError(
            f"kafka.sasl.jaas.config is missing; holdfast's own client does not read the JVM's login file: {way_out}"
        )
    module, options = parse_jaas(java["sasl.jaas.config"])
    if module not in _MODULES or "username" not in options or "password" not in options:
        raise ConfigError(
            f"kafka.sasl.jaas.config: {module} without a username and a password in it is Spark's only: {way_out}"
        )
    if options.get("tokenauth", "false").lower() == "true":
        raise ConfigError(f"kafka.sasl.jaas.config: tokenauth (a delegation token) is Spark's only: {way_out}")
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """(login module's short name, its options) of `package.Module required key="value" ...;`."""
    words: list[str] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            break
        quoted = match[1] if match[1] is not None else match[2]
        words.append(match[3] or match[4] or re.sub(r"\\(.)", r"\1", quoted or ""))
        position = match.end()
    pairs = words[2:-1]
    if text[position:].strip() or len(words) < 3 or words[-1] != ";" or len(pairs) % 3 or set(pairs[1::3]) - {"="}:
        # Not the text: there is a password in it.
        raise ConfigError('kafka.sasl.jaas.config is not `package.Module required username="..." password="...";`')
    return words[0].rpartition(".")[2], dict(zip(pairs[::3], pairs[2::3], strict=True))


def _truststore(java: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    if {"ssl.ca.location", "ssl.ca.pem"} & set(given):
        return {}
    if "ssl.truststore.certificates" in java:
        return {"ssl.ca.pem": java["ssl.truststore.certificates"]}
    if "ssl.truststore.location" not in java:
        return {}
    _only_pem(java, "ssl.truststore", "kafka.ssl.ca.location (a PEM file)")
    return {"ssl.ca.location": java["ssl.truststore.location"]}


def _keystore(java: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    if {"ssl.certificate.location", "ssl.certificate.pem"} & set(given):
        return {}
    if "ssl.keystore.key" in java and "ssl.keystore.certificate.chain" in java:
        return {"ssl.key.pem": java["ssl.keystore.key"], "ssl.certificate.pem": java["ssl.keystore.certificate.chain"]}
    location = java.get("ssl.keystore.location")
    if location is None:
        return {}
    if java.get("ssl.keystore.type", "").upper() == "PKCS12":
        return {key: java[key] for key in ("ssl.keystore.location", "ssl.keystore.password") if key in java}
    _only_pem(java, "ssl.keystore", "kafka.ssl.certificate.location and kafka.ssl.key.location (PEM files)")
    return {"ssl.certificate.location": location, "ssl.key.location": location}  # one file holds both


def _only_pem(java: Mapping[str, str], store: str, way_out: str) -> None:
    kind = java.get(f"{store}.type", "JKS")
    if kind.upper() != "PEM":
        raise ConfigError(
            f"kafka.{store}.location is of type {kind}, which holdfast's own client (it resolves the start and commits "
            f"group offsets) cannot read: use kafka.{store}.type=PEM, or give {way_out} too, which Spark ignores"
        )
