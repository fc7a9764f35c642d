"""Security settings for kafka-python from librdkafka's names; what it cannot express is refused, not ignored."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
#: Their values are never shown.
SECRETS = (
    "sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "sasl.jaas.config",
    "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config", "ssl.keystore.key", "ssl.truststore.password",
)  # fmt: skip
#: librdkafka's names -> kafka-python's, where the value is the same.
_SASL_NAMES = {
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
}
#: librdkafka renews the ticket with these; both clients use the ticket.
_TICKET = ("sasl.kerberos.principal", "sasl.kerberos.keytab", "sasl.kerberos.kinit.cmd",
           "sasl.kerberos.min.time.before.relogin")  # fmt: skip
#: Read by `tls`.
_TLS_NAMES = (
    "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location",
    "ssl.key.pem", "ssl.key.password", "ssl.crl.location", "ssl.cipher.suites", "enable.ssl.certificate.verification",
    "ssl.endpoint.identification.algorithm",
)  # fmt: skip
_WAYS_OUT = {
    "ssl.keystore.location": "convert it (openssl pkcs12) and give ssl.certificate.location and ssl.key.location",
    "ssl.keystore.password": "convert the keystore (openssl pkcs12) and give ssl.key.password",
}


def protocol(config: Mapping[str, Any]) -> str:
    """`security.protocol`, in capitals."""
    name = str(config.get("security.protocol", "PLAINTEXT")).upper()
    if name not in PROTOCOLS:
        raise ConfigError(f"security.protocol must be one of {', '.join(PROTOCOLS)}, not {name!r}")
    return name


def python_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the client that ends transactions; ConfigError names the one that it cannot have."""
    name = protocol(config)
    settings: dict[str, Any] = {"security_protocol": name, "bootstrap_servers": config["bootstrap.servers"]}
    if "client.id" in config:
        settings["client_id"] = config["client.id"]
    if name.startswith("SASL"):
        _refuse(config, ("sasl.", "enable.sasl."), (*_SASL_NAMES, *_TICKET))
        settings |= {_SASL_NAMES[key]: value for key, value in config.items() if key in _SASL_NAMES}
        _check_mechanism(settings)
    if name.endswith("SSL"):
        _refuse(config, ("ssl.", "enable.ssl."), _TLS_NAMES)
        settings["ssl_context"] = tls(config)
    return settings


def _refuse(config: Mapping[str, Any], prefixes: tuple[str, ...], known: tuple[str, ...]) -> None:
    for key in config:
        if key.startswith(prefixes) and key not in known:
            way_out = _WAYS_OUT.get(key, f"without it, or with one of {', '.join(known)}")
            raise ConfigError(f"config: {key} cannot be given to the client that ends transactions; {way_out}")


def _check_mechanism(settings: Mapping[str, Any]) -> None:
    mechanism = settings.get("sasl_mechanism", "GSSAPI")  # librdkafka's default
    if mechanism == "GSSAPI":
        if find_spec("gssapi") is None:
            raise ConfigError(
                "config: sasl.mechanism GSSAPI, which is also the default, needs the package gssapi and a librdkafka "
                f"with Kerberos; without them give one of {', '.join(_PASSWORD_MECHANISMS)}"
            )
        return
    if mechanism not in _PASSWORD_MECHANISMS:
        raise ConfigError(
            f"config: sasl.mechanism {mechanism!r} is not supported: use {', '.join(_PASSWORD_MECHANISMS)}, GSSAPI, "
            "or certificates (security.protocol SSL)"
        )
    for key, name in (("sasl_plain_username", "sasl.username"), ("sasl_plain_password", "sasl.password")):
        if not settings.get(key):
            raise ConfigError(f"config: {name} is missing: sasl.mechanism {mechanism} needs it")
    if mechanism != "PLAIN" and set(settings["sasl_plain_username"]) & set("=,"):
        raise ConfigError("config: sasl.username with a comma or an equals sign does not work with SCRAM")


def tls(config: Mapping[str, Any]) -> ssl.SSLContext:
    """A context as librdkafka would make it from the same settings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if _off(config, "enable.ssl.certificate.verification"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif str(config.get("ssl.endpoint.identification.algorithm", "https")).lower() in ("none", ""):
        context.check_hostname = False
    with _named("ssl.ca.location", "ssl.ca.pem"):
        _trust(context, config)
    with _named("ssl.crl.location"):
        if "ssl.crl.location" in config:
            context.load_verify_locations(cafile=config["ssl.crl.location"])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    with _named("ssl.cipher.suites"):
        if "ssl.cipher.suites" in config:
            context.set_ciphers(config["ssl.cipher.suites"])
    with _named("ssl.certificate.*", "ssl.key.*"):
        _identify(context, config)
    return context


def _trust(context: ssl.SSLContext, config: Mapping[str, Any]) -> None:
    location = config.get("ssl.ca.location")
    if "ssl.ca.pem" in config:
        context.load_verify_locations(cadata=str(config["ssl.ca.pem"]))
    if location and location != "probe":
        folder = Path(location).is_dir()
        context.load_verify_locations(**{"capath" if folder else "cafile": location})
    elif "ssl.ca.pem" not in config:
        context.load_default_certs()


def _identify(context: ssl.SSLContext, config: Mapping[str, Any]) -> None:
    """The client's own certificate and key. Python takes files only: text goes through memory, never to a disk."""
    opened: list[int] = []

    def file(kind: str) -> str | None:
        text = config.get(f"ssl.{kind}.pem")
        if text is None:
            location = config.get(f"ssl.{kind}.location")
            return None if location is None else str(location)
        if not hasattr(os, "memfd_create"):
            raise ConfigError(f"config: ssl.{kind}.pem works on Linux only; give ssl.{kind}.location")
        opened.append(os.memfd_create(f"ssl.{kind}.pem"))
        os.write(opened[-1], str(text).encode())
        return f"/proc/self/fd/{opened[-1]}"

    try:
        certificate, key = file("certificate"), file("key")
        if key is not None and certificate is None:
            raise ConfigError("config: ssl.key.* without ssl.certificate.location or ssl.certificate.pem")
        if certificate is not None:
            context.load_cert_chain(certificate, key, lambda: _key_password(config))
    finally:
        for number in opened:
            os.close(number)


def _key_password(config: Mapping[str, Any]) -> str:
    """Asked for when the key is encrypted; without it OpenSSL would ask on the terminal."""
    if "ssl.key.password" not in config:
        raise ConfigError("config: the key is encrypted: give ssl.key.password")
    return str(config["ssl.key.password"])


@contextmanager
def _named(*settings: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"config: {' or '.join(settings)} cannot be used: {error}") from error


def _off(config: Mapping[str, Any], key: str) -> bool:
    return str(config.get(key, "true")).lower() in ("false", "f", "0")


def without_secrets(text: str, config: Mapping[str, Any]) -> str:
    """A client's own words, should they ever repeat a password."""
    for key in SECRETS:
        value = str(config.get(key) or "")
        if value:
            text = text.replace(value, "***")
    return text
