"""Where a Cassandra cluster is and how to enter it: checked once; plain data, so that it travels to executors."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import ConfigError, MissingExtraError

#: Cassandra's own rule for the names of keyspaces and tables
_NAME = re.compile(r"\w{1,48}", re.ASCII)
_TLS = ("ca", "certificate", "key", "check_hostname")


def quote(identifier: str) -> str:
    """An identifier for use in CQL, in upper and lower case as it is."""
    return '"' + identifier.replace('"', '""') + '"'


def check_identifier(option: str, name: object) -> str:
    """The name of a keyspace or table."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{option} must be 1 to 48 letters, digits and underscores, not {name!r}")
    return name


def check_choice(option: str, value: object, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{option} must be one of {', '.join(allowed)}, not {value!r}")
    return value


@dataclass(frozen=True)
class Settings:
    """Where a cluster is and how to enter it."""

    contact_points: tuple[str, ...]
    port: int = 9042
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: tuple[tuple[str, Any], ...] | None = None
    local_dc: str | None = None
    timeout: float = 10.0

    @property
    def hosts(self) -> str:
        """For error texts."""
        return ", ".join(f"{host}:{self.port}" for host in self.contact_points)


def make_settings(
    contact_points: object,
    port: object,
    username: object,
    password: object,
    tls: object,
    local_dc: object,
    timeout: object,
) -> Settings:
    """Check every option; MissingExtraError when the driver is not installed."""
    try:
        import cassandra  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("Cassandra needs more packages: pip install 'holdfast[cassandra]'") from error
    if isinstance(contact_points, str) or not isinstance(contact_points, (list, tuple)) or not contact_points:
        raise ConfigError(f"contact_points must be a list of host names, not {contact_points!r}")
    for host in contact_points:
        if not isinstance(host, str) or not host.strip() or host != host.strip() or "/" in host:
            raise ConfigError(f"contact_points: {host!r} is not a host name or an address")
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise ConfigError(f"port must be a number from 1 to 65535, not {port!r}")
    for option, value in (("username", username), ("local_dc", local_dc)):
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(f"{option} must be text, or None, not {value!r}")
    if password is not None and not isinstance(password, str):
        raise ConfigError(f"password must be text, or None, not {type(password).__name__}")
    if (username is None) != (password is None):
        raise ConfigError("username and password go together: give both or none")
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
        raise ConfigError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    return Settings(
        tuple(contact_points), port, username, password, _check_tls(tls), local_dc, float(timeout)  # type: ignore[arg-type]
    )  # fmt: skip


def _check_tls(tls: object) -> tuple[tuple[str, Any], ...] | None:
    if tls is None or tls is False:
        return None
    if tls is True:
        return ()
    if not isinstance(tls, Mapping) or set(tls) - set(_TLS):
        raise ConfigError(f"tls must be True, False or a dict with some of {', '.join(_TLS)}, not {tls!r}")
    for option in ("ca", "certificate", "key"):
        if option in tls and not isinstance(tls[option], str | os.PathLike):
            raise ConfigError(f"tls: {option} must be the path of a PEM file that driver and executors have")
    if not isinstance(tls.get("check_hostname", True), bool):
        raise ConfigError("tls: check_hostname must be True or False")
    if "key" in tls and "certificate" not in tls:
        raise ConfigError("tls: key goes with certificate")
    return tuple(sorted((k, os.fspath(v) if isinstance(v, os.PathLike) else v) for k, v in tls.items()))


def tls_context(tls: tuple[tuple[str, Any], ...] | None) -> ssl.SSLContext | None:
    """Made where it is used: a context does not travel."""
    if tls is None:
        return None
    options = dict(tls)
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "certificate" in options:
            context.load_cert_chain(options["certificate"], options.get("key"))
    except OSError as error:  # also ssl.SSLError: a file that is missing or no PEM
        raise ConfigError(f"tls: a file of {options} cannot be used: {error}") from error
    context.check_hostname = options.get("check_hostname", True)
    return context
