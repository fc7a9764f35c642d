"""Where the checkpoint location is, in one spelling; imported by every worker, so it needs little."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import ConfigError


def checkpoint_location(given: Mapping[str, str]) -> str:
    """Where the log is, in one spelling: Spark says `file:/...` in one run and `file:///...` in the next."""
    location = given.get("checkpointlocation", "").strip()
    if not location:
        raise ConfigError(
            'format("holdfast"): option checkpointLocation is missing. It must be set for the query itself: what '
            "spark.sql.streaming.checkpointLocation says is not told to a data source"
        )
    if "://" not in location and not location.startswith("file:"):
        location = f"file:{Path(location).absolute()}"
    if location.startswith("file:"):
        return "file:///" + location.removeprefix("file:").lstrip("/").rstrip("/")
    return location.rstrip("/")
