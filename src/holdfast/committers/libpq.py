"""How PostgreSQL is reached: psycopg, and connection strings that never show up in a message."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError, MissingExtraError

#: Without these a host that vanished is noticed after hours. Whatever the user gives comes first.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "fallback_application_name": "holdfast",
}


def load_psycopg() -> Any:
    """The package, or the error that names the extra."""
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError("PostgreSQL needs more packages: pip install 'holdfast[postgres]'") from error
    return psycopg


def read_dsn(option: str, text: object) -> dict[str, str]:
    """A URL or `key=value` pairs, taken apart and with defaults; an error quotes nothing of it."""
    psycopg = load_psycopg()
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{option} must be text like postgresql://user@host/database, not {type(text).__name__}")
    wrong = ConfigError(
        f"{option} cannot be read: write postgresql://user:password@host:port/database or key=value pairs, and in a "
        "URL every special character of the password as %XX"
    )
    try:
        given = psycopg.conninfo.conninfo_to_dict(text)
    except psycopg.ProgrammingError:
        # Its message quotes the text, and with it perhaps a password.
        raise wrong from None
    # A password with a slash ends the host's part of a URL: the rest of it would be taken for port and database.
    if "://" in text and ("@" in str(given.get("dbname", "")) or not _is_port(given.get("port"))):
        raise wrong
    return {**_DEFAULTS, **{key: str(value) for key, value in given.items()}}


def conninfo(parts: dict[str, str]) -> str:
    """The parts as one string again."""
    text: str = load_psycopg().conninfo.make_conninfo("", **parts)
    return text


def without_limit(text: str) -> str:
    """The same, and rows may be unsent for as long as the host is there."""
    unlimited: str = load_psycopg().conninfo.make_conninfo(text, tcp_user_timeout="0")
    return unlimited


def address(parts: dict[str, str]) -> str:
    """host:port/database, for messages; what the string leaves to the environment is left out."""
    host = parts.get("hostaddr") or parts.get("host") or "local socket"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"{host}{port}/{parts.get('dbname') or parts.get('user') or ''}".removesuffix("/")


def _is_port(port: object) -> bool:
    return port is None or all(part.isdigit() or not part for part in str(port).split(","))
