"""What runs in a task to see which packages executors have. It is sent there as it is, since holdfast may be missing.

Through Spark's own doors a task must also say by itself what is wrong, where nobody can ask it before.

Nothing here may need more than Python itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def look(modules: Sequence[str], objects: bytes, number: int) -> dict[str, Any]:
    """Where task `number` runs, which modules cannot be found there, and why the pickled objects cannot be had."""
    import importlib.util
    import pickle
    import platform
    import socket
    import sys

    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    failure, version = None, None
    if not missing:
        try:
            pickle.loads(objects)  # noqa: S301  the driver's own bytes, as every task gets them
        except ModuleNotFoundError as error:
            missing.append(error.name or str(error))
        except Exception as error:  # noqa: BLE001  told on the driver
            failure = f"{type(error).__name__}: {error}"
        version = getattr(sys.modules.get("holdfast"), "__version__", None)
    return {
        "host": socket.gethostname(),
        "python": f"{sys.executable} ({platform.python_version()})",
        "missing": missing,
        "failure": failure,
        "version": version,
    }


def wrong(
    seen: Mapping[str, Any], extras: Sequence[str], ours: Sequence[str], version: str, *, door: bool = False
) -> tuple[str, str] | None:
    """The name of an error and its words when what `look` saw does not do; `ours`: all modules that extras bring.

    `door`: tasks of a data source, whose Python Spark chooses in another way.
    """
    where = f"an executor on {seen['host']} runs {seen['python']}"
    if seen["missing"]:
        lacks = f"{where}, and tasks there lack {listed(seen['missing'])}"
        return "MissingExtraError", f"{lacks}. {remedy(seen['missing'], extras, ours, door)}"
    if seen["failure"]:
        return "ConfigError", f"{where}, and tasks there cannot load the sinks: {seen['failure']}. Nothing was decided"
    if seen["version"] != version:
        return "ConfigError", (
            f"{where} with holdfast {seen['version']}, and the driver has {version}: they must be the same, since "
            "tasks and driver share the format of the log. Ship the driver's with the job. Nothing was decided"
        )
    return None


def remedy(missing: Sequence[str], extras: Sequence[str], ours: Sequence[str], door: bool) -> str:
    """What to ship, and how."""
    own = [name for name in missing if name.partition(".")[0] not in ours]
    if own:
        return (
            f"Ship {listed(own)} with the job: `spark-submit --py-files {own[0].partition('.')[0]}.py`, or a zip of "
            "the package. Nothing was decided"
        )
    wanted = f"holdfast[{','.join(extras)}]" if extras else "holdfast"
    if door:
        return (
            f"Install '{wanted}' on every machine of the cluster for the Python that PYSPARK_PYTHON names where the "
            "driver is started, by the same path on each: for data sources Spark does not look at "
            "`spark.pyspark.python`. Or use hf.write_stream, to which an environment can be shipped with the job "
            "(docs/deploy). Nothing was decided"
        )
    return (
        f"Install '{wanted}' on every machine of the cluster for the Python that `spark.pyspark.python` names; or ship "
        "the environment with the job: `venv-pack -o env.tar.gz`, then `spark-submit --archives env.tar.gz#env --conf "
        "spark.pyspark.python=./env/bin/python` (docs/deploy). Nothing was decided"
    )


def listed(names: Sequence[str]) -> str:
    """Modules, each once."""
    return ", ".join(f"the module {name!r}" for name in dict.fromkeys(names))
