"""What Spark was told of object stores (`spark.hadoop.fs.s3a.*`, `fs.azure.*`, `fs.gs.*`): we use the same credentials.

Handed from the driver to its tasks in memory, and never written anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

#: Hadoop's names
NAMES = (
    "fs.s3a.access.key",
    "fs.s3a.secret.key",
    "fs.s3a.session.token",
    "fs.s3a.endpoint",
    "fs.s3a.endpoint.region",
    "fs.s3a.path.style.access",
    "fs.s3a.connection.ssl.enabled",
    "fs.gs.auth.type",
    "fs.gs.auth.service.account.json.keyfile",
    "fs.gs.project.id",
    "fs.gs.storage.root.url",
    # An address with a port, instead of the account's own host: for emulators.
    "fs.azure.abfs.endpoint",
)
_KEY, _SAS, _CLIENT = "fs.azure.account.key", "fs.azure.sas.fixed.token", "fs.azure.account.oauth2.client"
_S3, _BUCKET = "fs.s3a.", "fs.s3a.bucket."
#: the beginnings of names that go on with an account's host, or with a bucket's name and one of `fs.s3a.*`
PREFIXES = (f"{_KEY}.", _SAS, f"{_CLIENT}.", _BUCKET)
_OF_BUCKETS = tuple(name.removeprefix(_S3) for name in NAMES if name.startswith(_S3))
#: the end of the host of an account that is in Azure's public cloud
_PUBLIC = ".dfs.core.windows.net"
_given: dict[str, str] = {}


def read_settings(get: Callable[[str], str | None], below: Callable[[str], Mapping[str, str]]) -> dict[str, str]:
    """Those that are set: `get` gives one of Hadoop's, `below` those whose names begin so, by the rest of the name."""
    found = {name: get(name) for name in NAMES}
    for prefix in PREFIXES:
        found.update({f"{prefix}{rest}": value for rest, value in below(prefix).items()})
    # One of a bucket counts when it is empty, too: it takes back what is set for all of them.
    of_buckets = tuple(f".{name}" for name in _OF_BUCKETS)
    return {
        name: value or ""
        for name, value in found.items()
        if (name.endswith(of_buckets) and value is not None if name.startswith(_BUCKET) else value)
    }


def use(settings: Mapping[str, str]) -> None:
    """From now on stores are reached so, in this process; without any, the environment says how."""
    _given.clear()
    _given.update(settings)


def given() -> dict[str, str]:
    """What is in use."""
    return dict(_given)


def bucket_with_own(root: str) -> str:
    """The bucket of a path, if something is set for it alone; else nothing, since one client will do for all others."""
    bucket = root.partition("/")[0]
    return bucket if any(f"{_BUCKET}{bucket}.{name}" in _given for name in _OF_BUCKETS) else ""


def s3_options(bucket: str = "") -> dict[str, Any]:
    """For s3fs, of this bucket; empty when nothing was set."""
    own = {name: _given.get(f"{_BUCKET}{bucket}.{name}", _given.get(f"{_S3}{name}")) for name in _OF_BUCKETS}
    told = {name: value for name, value in own.items() if value}
    options: dict[str, Any] = {}
    for name, option in (("access.key", "key"), ("secret.key", "secret"), ("session.token", "token")):
        if name in told:
            options[option] = told[name]
    if "endpoint" in told:
        secure = told.get("connection.ssl.enabled", "true").lower() != "false"
        endpoint = told["endpoint"]
        options["endpoint_url"] = endpoint if "://" in endpoint else f"http{'s' if secure else ''}://{endpoint}"
    if "endpoint.region" in told:
        options["client_kwargs"] = {"region_name": told["endpoint.region"]}
    if told.get("path.style.access", "").lower() == "true":
        options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    return options


def gcs_options() -> dict[str, Any]:
    """For gcsfs; empty when nothing was set."""
    options: dict[str, Any] = {}
    if "fs.gs.storage.root.url" in _given:
        options["endpoint_url"] = _given["fs.gs.storage.root.url"].rstrip("/")
    if "fs.gs.project.id" in _given:
        options["project"] = _given["fs.gs.project.id"]
    if _given.get("fs.gs.auth.type") == "UNAUTHENTICATED":
        options["token"] = "anon"
    elif "fs.gs.auth.service.account.json.keyfile" in _given:
        options["token"] = _given["fs.gs.auth.service.account.json.keyfile"]
    return options


def azure_options(host: str) -> dict[str, Any]:
    """For adlfs, of the account with this host; where Spark was told nothing of it, the environment says the rest."""
    account = host.partition(".")[0]
    blob = host.replace(".dfs.", ".blob.", 1)
    options: dict[str, Any] = {"account_name": account}
    if not host.endswith(_PUBLIC):
        options["account_host"] = blob
    # A connection string, since one that the environment has would win over anything else.
    endpoint = f"https://{blob}"
    if "fs.azure.abfs.endpoint" in _given:
        endpoint = f"http://{_given['fs.azure.abfs.endpoint']}/{account}"
    if key := _of_account(_KEY, host):
        options["connection_string"] = f"AccountName={account};AccountKey={key};BlobEndpoint={endpoint}"
    elif token := _of_account(_SAS, host):
        options["connection_string"] = f"BlobEndpoint={endpoint};SharedAccessSignature={token.lstrip('?')}"
    elif client := _of_account(f"{_CLIENT}.id", host):
        options["client_id"] = client
        options["client_secret"] = _of_account(f"{_CLIENT}.secret", host)
        endpoint = _of_account(f"{_CLIENT}.endpoint", host) or ""
        options["tenant_id"] = urlsplit(endpoint).path.strip("/").partition("/")[0]  # of .../TENANT/oauth2/token
    return options


def _of_account(name: str, host: str) -> str | None:
    """As Hadoop looks it up: for the account, then for all of them."""
    names = (f"{name}.{host}", f"{name}.{host.replace('.dfs.', '.blob.', 1)}", name)
    return next((_given[each] for each in names if each in _given), None)
