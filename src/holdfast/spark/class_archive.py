"""Spark's classes kept in Java's own format, so that the next Spark starts sooner.

A third of the time until a first row is Java reading and verifying the same 20,000 classes. Java can map them from a
class data sharing archive instead: `holdfast prepare` makes one (150 MB in the cache), and `hf.session` uses it. Java
itself checks that an archive fits its class path and goes on without one that does not. Jars added by `spark.jars`,
such as Kafka's connector, are not in it: Spark loads them in a way that Java does not keep.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark

from holdfast.errors import ConfigError, HoldfastError
from holdfast.spark.jars import cache_folder

logger = logging.getLogger("holdfast")
#: Spark's setting: use an archive that is there; `make` it beside the program if it is not; or do without.
SETTING, WAYS = "spark.holdfast.classArchive", ("use", "make", "off")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: Whoever says one of these knows better.
_OWN = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare:off", "-Xshare:dump")
#: What spark-submit and Java add to the command line by themselves.
_VARIABLES = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
#: What spark-submit puts before and after its jars.
_CLASS_PATH = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
_EXTRA_CLASS_PATH = "spark.driver.extraClassPath"
#: Java says on standard output that an archive does not fit; that is for whoever looks for it.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
#: seconds: an archive nobody has used for so long is removed; who makes one has ended by then
_UNUSED, _MAKING = 28 * 24 * 3600, 600


def location(settings: Mapping[str, str] | None = None) -> Path | None:
    """Where the archive of this Java and this Spark is, or will be; None where there is no Java or no Spark here."""
    java = shutil.which("java", path=f"{os.environ['JAVA_HOME']}/bin" if "JAVA_HOME" in os.environ else None)
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    if java is None or not jars.is_dir():
        return None
    binary = Path(java).resolve()
    # Java compares the files and their order, which is the order the folder gives them in.
    parts = [str(binary), str(jars), *(os.environ.get(name, "") for name in _CLASS_PATH)]
    parts.append((settings or {}).get(_EXTRA_CLASS_PATH, ""))
    for file in [binary, *jars.iterdir()]:
        state = file.stat()
        parts.append(f"{file.name} {state.st_size} {state.st_mtime_ns}")
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / "classes" / f"spark-{pyspark.__version__}-{key}.jsa"


def options(settings: Mapping[str, str]) -> str:
    """What to tell the Java that is started for a session with these settings; nothing where there is no archive."""
    way = settings.get(SETTING, "use")
    if way not in WAYS:
        raise ConfigError(f"{SETTING} must be one of {', '.join(WAYS)}, not {way!r}")
    told = " ".join([settings.get(JAVA_OPTIONS, ""), *(os.environ.get(name, "") for name in _VARIABLES)])
    if way == "off" or any(word in told for word in _OWN):
        return ""
    archive = location(settings)
    if archive is None:
        return ""
    if not archive.exists():
        if way == "make":
            make_beside(archive)
        return ""
    with contextlib.suppress(PermissionError):
        os.utime(archive)  # it is in use; whoever may not say so uses somebody else's
    option = f"-XX:SharedArchiveFile={archive}"
    return f'{_QUIET} "{option}"' if " " in option else f"{_QUIET} {option}"


def make() -> Path:
    """The archive, made if it is not there, which takes half a minute; HoldfastError where none can be made."""
    archive = location()
    if archive is None:
        raise HoldfastError("no java on PATH and no JAVA_HOME: install Java 17 (Debian: openjdk-17-jre-headless)")
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(f"{archive.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="holdfast-classes-") as work:
        command = [sys.executable, "-m", "holdfast.spark.class_training", str(unfinished), work]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not unfinished.exists():
        unfinished.unlink(missing_ok=True)
        raise HoldfastError(f"this Java kept no archive of Spark's classes: {(done.stdout + done.stderr)[-800:]}")
    # Java crashes on half an archive: the name is only ever that of a whole file. Two makers at once make the same.
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.rename(archive)
    _remove_unused(archive)
    return archive


def make_beside(archive: Path) -> subprocess.Popen[bytes] | None:
    """Start a process that makes it when nobody else wants the machine; None when one is already at it."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    claim = archive.with_suffix(".making")
    with contextlib.suppress(FileNotFoundError):
        if claim.stat().st_mtime < time.time() - _MAKING:
            claim.unlink()
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return None
    logger.info("an archive of Spark's classes is made for the next start: %s", archive)
    # Not in this process group: it goes on when the program ends.
    return subprocess.Popen(
        ["nice", "-n", "19", sys.executable, "-m", "holdfast.spark.class_archive"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _remove_unused(archive: Path) -> None:
    for other in archive.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if other != archive and other.stat().st_mtime < time.time() - _UNUSED:
                other.unlink()


if __name__ == "__main__":
    make().with_suffix(".making").unlink(missing_ok=True)
