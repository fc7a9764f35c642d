"""Clients of object stores: fsspec's drivers, each made so that what the log needs of its store can be had."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from holdfast.checkpoint import hadoop
from holdfast.errors import ConfigError, MissingExtraError

#: scheme of a location -> the one that its client has
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs"}
_EXTRAS = {"s3": "s3", "gs": "gcs", "abfs": "azure"}
#: where a file gets its name by a copy, and the removal of the one it was made of
_COPYING = ("gs", "abfs")
#: the beginnings of the names of variables that tell clients where and who
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_", "GCSFS_", "STORAGE_EMULATOR_HOST")
#: seconds between two looks whether Azure has copied a file
_COPY_WAIT = 0.2


@dataclass(frozen=True)
class Place:
    """Where a location is."""

    #: its client's
    scheme: str
    #: what opens it again, with the same credentials
    url: str
    #: bucket, or container, and path
    root: str
    #: of an account of Azure's: `NAME.dfs.core.windows.net`
    host: str = ""
    #: reached as Spark was told, where it was told anything
    hadoop: bool = False


def place_of(location: str) -> Place:
    """A location, taken apart; `abfs://CONTAINER@HOST/PATH` is how Spark names one in Azure."""
    given, _, rest = location.partition("://")
    scheme, rest = _SCHEMES.get(given, given), rest.rstrip("/")
    host = ""
    if scheme == "abfs":
        container, _, path = rest.partition("/")
        container, _, host = container.partition("@")
        url, root = f"{given}://{rest}", f"{container}/{path}".rstrip("/")
    else:
        url, root = f"{'s3a' if given == 's3a' else scheme}://{rest}", rest
    return Place(scheme, url, root, host, hadoop=given == "s3a" or scheme == "gs" or bool(host))


def extra_for(location: str) -> str | None:
    """The extra whose packages reach a location; None where none is needed."""
    given = location.partition("://")[0]
    return _EXTRAS.get(_SCHEMES.get(given, given)) if "://" in location else None


def returning_files(location: str) -> str | None:
    """What has to be said of a folder whose files can come back; None where they cannot.

    Whoever is killed between the copy and the removal does both again, and does not know what became of the copy.
    """
    given = location.partition("://")[0]
    if "://" not in location or _SCHEMES.get(given, given) not in _COPYING:
        return None
    return (
        f"files in {location} are shown by a copy: while no driver runs, or a checkpoint is not complete, nobody may "
        "move, compact or delete committed ones, or the next start can show one again"
    )


def open_client(location: str, place: Place) -> Any:
    """One client a process: making one costs hundreds of milliseconds, and every task opens the store several times.

    Never shared with a forked child, and made anew when the environment points elsewhere.
    """
    environment = sorted((k, v) for k, v in os.environ.items() if k.startswith(_VARIABLES))
    told = sorted(hadoop.given().items()) if place.hadoop else []
    try:
        bucket = hadoop.bucket_with_own(place.root) if place.hadoop and place.scheme == "s3" else ""
        return _client(place.scheme, place.host or bucket, place.hadoop, os.getpid(), *environment, *told)
    except ImportError as error:
        extra = extra_for(location)
        remedy = f"pip install 'holdfast[{extra}]'" if extra else str(error)
        raise MissingExtraError(f"checkpoint location {location!r} needs more packages: {remedy}") from error
    except ConfigError:
        raise
    except ValueError as error:
        account = (
            "name the account, abfs://container@account.dfs.core.windows.net/path, or set AZURE_STORAGE_ACCOUNT_NAME"
        )
        hint = f": {account}" if place.scheme == "abfs" and not place.host else ""
        raise ConfigError(f"checkpoint location {location!r}: {error}{hint}") from error


@lru_cache(maxsize=8)
def _client(scheme: str, whose: str, as_spark: bool, *_key: object) -> Any:
    """`whose`: the host of an account of Azure's; the name of a bucket that has settings of its own."""
    # Not from fsspec's own cache of clients: that one does not know the environment, and keeps an old endpoint.
    always = {"use_listings_cache": False, "skip_instance_cache": True}
    if scheme == "gs":
        return _google(hadoop.gcs_options() if as_spark else {}, always)
    if scheme == "abfs":
        return _azure(whose, hadoop.azure_options(whose) if whose else {}, always)
    import fsspec

    return fsspec.filesystem(scheme, **always, **(hadoop.s3_options(whose) if as_spark else {}))


def _google(options: dict[str, Any], always: dict[str, Any]) -> Any:
    # The plain client. The one that gcsfs offers first asks by gRPC what kind of bucket it is, and gRPC does not live
    # through a fork; and nobody has proven that the zonal buckets that it is for create a name only once.
    from gcsfs.core import GCSFileSystem

    _quiet("gcsfs")
    return GCSFileSystem(**always, **options)


def _azure(host: str, options: dict[str, Any], always: dict[str, Any]) -> Any:
    import fsspec

    _quiet("azure")
    fs = fsspec.filesystem("abfs", **always, **options)
    from azure.storage.blob.aio import BlobServiceClient, ExponentialRetry

    # By default it sits still for 15 seconds after a 503, and for a minute when nobody answers.
    retry = ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=5, random_jitter_range=1)
    made = fs.service_client
    fs.service_client = BlobServiceClient(made.url, credential=made.credential, retry_policy=retry)
    account = host.partition(".")[0]
    if host and fs.service_client.account_name != account:
        raise ConfigError(
            f"the location is in the account {account!r}, and AZURE_STORAGE_CONNECTION_STRING is for "
            f"{fs.service_client.account_name!r}: unset the variable, or make it that account's"
        )
    return fs


@lru_cache(maxsize=8)
def _quiet(name: str) -> None:
    """Clients print a failure before they raise it, where nobody has set up logging; what they raise is told."""
    logging.getLogger(name).addHandler(logging.NullHandler())


def copy(fs: Any, source: str, target: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Copy a file within the store, and be done when it is copied."""
    fs.cp_file(source, target)
    if not hasattr(fs, "service_client"):
        return
    from fsspec.asyn import sync

    # Azure may say that it has begun, and then copies in its own time.
    container, name, _ = fs.split_path(target)
    while (status := sync(fs.loop, _copy_status, fs, container, name)) == "pending":
        sleep(_COPY_WAIT)
    if status not in (None, "success"):
        raise OSError(f"Azure's copy of {source} to {target} ended with {status!r}")


async def _copy_status(fs: Any, container: str, name: str) -> str | None:
    async with fs.service_client.get_blob_client(container, name) as blob:
        properties = await blob.get_blob_properties()
    status: str | None = properties.copy.status
    return status
