"""Proving at the start that executors have the packages that their tasks need."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark import SparkContext

from holdfast import errors
from holdfast.checkpoint.clients import extra_for
from holdfast.core.version import __version__
from holdfast.errors import ConfigError
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark import look, private
from holdfast.spark.failures import SparkGoneError, asking_spark, failure_of
from holdfast.spark.shared import is_cluster, lookers

#: extra -> the modules that it brings and tasks import
MODULES: Mapping[str, tuple[str, ...]] = {
    "kafka": ("confluent_kafka", "kafka"),
    "postgres": ("psycopg", "adbc_driver_manager", "adbc_driver_postgresql"),
    "cassandra": ("cassandra",),
    "s3": ("s3fs",),
    "azure": ("adlfs",),
    "gcs": ("gcsfs",),
}
#: What every task imports.
ALWAYS = ("pyarrow", "holdfast")
_OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH\]?\s*(.*?)(?:\n|$)")


def prove_packages(context: SparkContext, sinks: Sequence[TwoPhaseCommitSink], location: str) -> None:
    """MissingExtraError, which says what to ship and how, when executors lack it; free where tasks run with us."""
    if not is_cluster(context):
        return
    plain = [getattr(sink, "template", sink) for sink in sinks]
    extras = extras_of(plain, location)
    with private.by_value(look):
        found = _ask(context, partial(look.look, modules_of(extras), private.pickled(plain)))
    for seen in found:
        check(seen, extras)


def _ask(context: SparkContext, task: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    count = lookers(context)
    try:
        with asking_spark():
            return context.parallelize(range(count), count).map(task).collect()
    except SparkGoneError:
        raise
    except Exception as error:
        other = _OTHER_PYTHON.search(str(error))
        if other is None:
            raise failure_of(str(error)) from error
        raise ConfigError(
            f"executors run another Python than the driver: {other.group(1)} Set spark.pyspark.python to the same "
            "version on all machines, or ship the environment with the job (docs/deploy). Nothing was decided"
        ) from error


def extras_of(sinks: Iterable[Any], location: str) -> list[str]:
    """The extras whose packages tasks of these sinks import."""
    found: set[str] = set()
    for sink in sinks:
        found.update(sink.extras)
        found.update(getattr(getattr(sink, "committer", None), "extras", ()))
        found.update(filter(None, map(extra_for, sink.shared_paths(location))))
    return sorted(found)


def check(seen: Mapping[str, Any], extras: Sequence[str]) -> None:
    """Raise when what was seen on an executor does not do."""
    problem = look.wrong(seen, extras, ours(), __version__)
    if problem is not None:
        kind: type[ConfigError] = getattr(errors, problem[0])
        raise kind(problem[1])


def ours() -> list[str]:
    """Every module that holdfast or an extra of it brings."""
    return [*ALWAYS, *(module for names in MODULES.values() for module in names)]


def modules_of(extras: Iterable[str]) -> list[str]:
    """What tasks with these extras import."""
    return [*ALWAYS, *(module for extra in extras for module in MODULES[extra])]
