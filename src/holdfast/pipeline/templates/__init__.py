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
#: template -> topics it needs in Kafka, the first with rows, and the variable with the address of a PostgreSQL
_NEEDS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "kafka-to-kafka": (("orders", "totals"), None),
    "kafka-to-postgres": (("orders",), "SHOP_DSN"),
    "kafka-to-files": (("orders",), None),
}


def servers_script(template: str, job: str, script: str) -> str | None:
    """A script that starts what a template needs; None when it needs nothing."""
    if template not in _NEEDS:
        return None
    topics, dsn = _NEEDS[template]
    text = (files(__package__) / "servers.txt").read_text(encoding="utf-8")
    what = "Kafka" if dsn is None else "Kafka and PostgreSQL"
    arguments = f"kafka={list(topics)!r}".replace("'", '"') + (f', postgres="{dsn}"' if dsn is not None else "")
    return text.format(job=job, script=script, what=what, topic=topics[0], arguments=arguments)


def find(name: str) -> str:
    """The text of a template."""
    if name not in TEMPLATES:
        raise ConfigError(f"there is no template {name!r}; {nearest(name, list(TEMPLATES))}")
    return (files(__package__) / f"{name}.yaml").read_text(encoding="utf-8")
