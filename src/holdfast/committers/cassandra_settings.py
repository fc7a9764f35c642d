"""Where a Cassandra cluster is and how to enter it: checked once; plain data, so that it travels to executors."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from holdfast.core.options import SECONDS, SECRET, Rule, fits, text, whole
from holdfast.errors import ConfigError, MissingExtraError

#: Cassandra's own rule for the names of keyspaces and tables
_NAME = re.compile(r"\w{1,48}", re.ASCII)
_TLS = ("ca", "certificate", "key", "check_hostname")
#: types of options that the sink and the committer share
Hosts = Annotated[Sequence[str], Rule("a list of host names", lambda value: bool(value) and fits(Sequence[str], value))]
Port = Annotated[int, whole(1, 65535, "a number from 1 to 65535")]
Word = Annotated[str, text("text")]
Password = Annotated[str, SECRET]
Timeout = Annotated[float, SECONDS]
Tls = Annotated[
    bool | Mapping[str, Any],
    Rule(f"True, False or a dict with some of {', '.join(_TLS)}", lambda value: isinstance(value, bool | Mapping)),
]


def quote(identifier: str) -> str:
    """An identifier for use in CQL, in upper and lower case as it is."""
    return '"' + identifier.replace('"', '""') + '"'


def check_identifier(option: str, name: object) -> str:
    """The name of a keyspace or table."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{option} must be 1 to 48 letters, digits and underscores, not {name!r}")
    return name


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
    contact_points: Hosts,
    port: Port,
    username: Word | None,
    password: Password | None,
    tls: Tls,
    local_dc: Word | None,
    timeout: float,
) -> Settings:
    """Check what their types do not say; MissingExtraError when the driver is not installed."""
    try:
        import cassandra  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("Cassandra needs more packages: pip install 'holdfast[cassandra]'") from error
    for host in contact_points:
        if not host.strip() or host != host.strip() or "/" in host:
            raise ConfigError(f"contact_points: {host!r} is not a host name or an address")
    if (username is None) != (password is None):
        raise ConfigError("username and password go together: give both or none")
    return Settings(tuple(contact_points), port, username, password, _check_tls(tls), local_dc, float(timeout))


def _check_tls(tls: bool | Mapping[str, Any]) -> tuple[tuple[str, Any], ...] | None:
    if isinstance(tls, bool):
        return () if tls else None
    if set(tls) - set(_TLS):
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
