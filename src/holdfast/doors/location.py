"""Where the checkpoint location is, in one spelling; imported by every worker, so it needs little."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import ConfigError

#: as Hadoop reads it: `hdfs:/data` has one too
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def checkpoint_location(given: Mapping[str, str]) -> str:
    """Where the log is, in one spelling: Spark says `file:/...` in one run and `file:///...` in the next."""
    location = given.get("checkpointlocation", "").strip()
    if not location:
        raise ConfigError(
            'format("holdfast"): option checkpointLocation is missing. It must be set for the query itself: what '
            "spark.sql.streaming.checkpointLocation says is not told to a data source"
        )
    if not names_its_files(location):
        location = f"file:{Path(location).absolute()}"
    if location.startswith("file:"):
        return "file:///" + location.removeprefix("file:").lstrip("/").rstrip("/")
    return location.rstrip("/")


def names_its_files(location: str) -> bool:
    """Whether it says which file system it is of; else Spark takes it for one of the default."""
    return location.startswith("file:") or _SCHEME.match(location) is not None
