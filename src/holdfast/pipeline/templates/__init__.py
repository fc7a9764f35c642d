"""Job files to begin with; `holdfast new` writes them. Each is run by the tests."""

from __future__ import annotations

from importlib.resources import files

from holdfast.errors import ConfigError
from holdfast.pipeline.document import nearest

TEMPLATES = {
    "rate-to-stdout": "rows made by Spark, printed: needs nothing",
    "files-to-sqlite": "JSON files of a folder into a table of an SQLite file",
    "kafka-to-kafka": "event-time totals of a topic into another topic",
    "kafka-to-postgres": "a topic of JSON into a table of PostgreSQL",
    "kafka-to-files": "a topic of JSON into Parquet files by event date",
}


def find(name: str) -> str:
    """The text of a template."""
    if name not in TEMPLATES:
        raise ConfigError(f"there is no template {name!r}; {nearest(name, list(TEMPLATES))}")
    return (files(__package__) / f"{name}.yaml").read_text(encoding="utf-8")
