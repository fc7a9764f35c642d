"""What Spark was told of S3 (`spark.hadoop.fs.s3a.*`), for `s3a://` locations: the same store, by the same credentials.

Handed from the driver to its tasks in memory, and never written anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Hadoop's names, below `fs.s3a.`
NAMES = (
    "access.key",
    "secret.key",
    "session.token",
    "endpoint",
    "endpoint.region",
    "path.style.access",
    "connection.ssl.enabled",
)
_given: dict[str, str] = {}


def read_settings(get: Callable[[str], str | None]) -> dict[str, str]:
    """Those that are set, by `get` of Hadoop's configuration."""
    found = {name: get(f"fs.s3a.{name}") for name in NAMES}
    return {name: value for name, value in found.items() if value}


def use(settings: Mapping[str, str]) -> None:
    """From now on `s3a://` means this, in this process; without any, the environment says it, as for `s3://`."""
    _given.clear()
    _given.update(settings)


def given() -> dict[str, str]:
    """What is in use."""
    return dict(_given)


def client_options() -> dict[str, Any]:
    """The same for s3fs; empty when nothing was set."""
    options: dict[str, Any] = {}
    for name, option in (("access.key", "key"), ("secret.key", "secret"), ("session.token", "token")):
        if name in _given:
            options[option] = _given[name]
    if "endpoint" in _given:
        secure = _given.get("connection.ssl.enabled", "true").lower() != "false"
        endpoint = _given["endpoint"]
        options["endpoint_url"] = endpoint if "://" in endpoint else f"http{'s' if secure else ''}://{endpoint}"
    if "endpoint.region" in _given:
        options["client_kwargs"] = {"region_name": _given["endpoint.region"]}
    if _given.get("path.style.access", "").lower() == "true":
        options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    return options
