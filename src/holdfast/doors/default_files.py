"""Where Spark puts a checkpoint location that names no file system, told without Spark: its workers cannot ask Java.

Spark's Java takes such a path for one of Hadoop's default file system. Here it would be one of this machine, and the
two halves of a checkpoint would lie in different places.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from holdfast.doors.jvm import Jvm, class_path, settings_of
from holdfast.doors.location import names_its_files
from holdfast.errors import ConfigError

#: Hadoop's names of the setting, the old one last
_NAMES = ("fs.defaultFS", "fs.default.name")
_FILE = "core-site.xml"


def refuse_elsewhere(given: Mapping[str, str], jvm: Jvm) -> None:
    """Refuse a checkpoint location without a scheme where Spark would not take it for a path of this machine."""
    location = given.get("checkpointlocation", "").strip()
    if not location or names_its_files(location):
        return
    found = default_files(jvm)
    if found is None:
        return
    url, where = found
    raise ConfigError(
        f'format("holdfast"): checkpointLocation {location!r} has no scheme, and the default file system of this Spark '
        f"is {url} (so says {where}): Spark would keep its part there, and holdfast its own on the driver's machine. "
        "Give it with its scheme: on an object store (s3a://bucket/...), or file:///... on a file system that is "
        "mounted on every machine. HDFS, and what else only Java reaches, holdfast cannot use; nor can hf.write_stream"
    )


def default_files(jvm: Jvm) -> tuple[str, str] | None:
    """Spark's default file system and who says so; None when it is that of the machine, as far as can be seen."""
    settings = settings_of(jvm)
    told = [(settings.get(f"spark.hadoop.{name}"), f"spark.hadoop.{name}") for name in _NAMES]
    for folder in class_path(jvm):
        told += [(value, str(folder / _FILE)) for value in _values(folder / _FILE)]
    # A setting of Spark wins over every file, and of the files that which Java's class path has first.
    url, where = next(((url, where) for url, where in told if url), ("", ""))
    return None if url.partition(":")[0].lower() in ("", "file") else (url, where)


def _values(file: Path) -> list[str]:
    """The setting in a file of Hadoop's, where there is one."""
    try:
        found = ElementTree.fromstring(file.read_text())
    except (OSError, ValueError, ElementTree.ParseError):
        return []  # that it is no good is for Spark to say
    entries = {one.findtext("name", "").strip(): one.findtext("value", "").strip() for one in found.iter("property")}
    return [entries[name] for name in _NAMES if entries.get(name)]
