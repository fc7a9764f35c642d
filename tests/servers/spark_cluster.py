"""A real Spark standalone cluster from the pip package: a master and two workers as processes, on loopback.

Each worker has one core and a gigabyte, so that an application of two cores has one executor on each.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark

from holdfast.spark import class_archive
from tests.crash.processes import ancestors, command_of, descendants, kill_all, state_of, wait_for

HOME = Path(pyspark.__file__).parent
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_SETTINGS = {
    # A worker that is told to by a signal (SIGPWR) hands its work over and takes no more.
    "spark.decommission.enabled": "true",
    # Whoever kills executors for a living is not to be given up.
    "spark.deploy.maxExecutorRetries": "-1",
}
#: What an application is told, to fit in. Tasks are tried four times, as everywhere but on a local Spark.
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.task.maxFailures": "4",
    "spark.pyspark.python": sys.executable,
    "spark.decommission.enabled": "true",
    # Two executors or none: a case is about what the one does while the other is gone.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}


class SparkCluster:
    """Start and end; find, stop and kill executors, all by process id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._names: dict[int, str] = {}
        self._leaving: set[int] = set()
        self._made = 0
        self.url = ""
        folder.mkdir(parents=True, exist_ok=True)

    # -- its life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The master, then two workers."""
        self._master = self._launch("master", "org.apache.spark.deploy.master.Master", ["--port", "0"])
        self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
        for _ in range(2):
            self.add_worker()

    def add_worker(self) -> None:
        """One more, and wait until the master knows it."""
        self._made += 1
        name = f"worker-{self._made}"
        sizes = ["-c", "1", "-m", "1g", "-d", str(self.folder / name), self.url]
        worker = self._launch(name, "org.apache.spark.deploy.worker.Worker", ["--port", "0", *sizes])
        self._workers[worker.pid], self._names[worker.pid] = worker, name
        self._said(name, r"Successfully registered with master (\S+)")

    def _launch(self, name: str, kind: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        options = [*_SMALL, *(f"-D{key}={value}" for key, value in _SETTINGS.items())]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_", "PYTHONPATH"))}
        env |= {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        env["SPARK_DAEMON_JAVA_OPTS"] = " ".join(options)
        command = [str(HOME / "bin" / "spark-class"), kind, "--host", "127.0.0.1", "--webui-port", "0", *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def _said(self, name: str, pattern: str) -> str:
        found: list[str] = []

        def said() -> bool:
            found[:] = re.findall(pattern, (self.folder / f"{name}.log").read_text(errors="replace"))
            return bool(found)

        wait_for(said, f"{name} of the Spark cluster says {pattern}", 120)
        return found[0]

    def stop(self, *, kill: bool = True) -> None:
        """End all of it; there is nothing that it would have to keep."""
        started = [*self._workers.values(), *([self._master] if self._master else [])]
        kill_all([pid for process in started for pid in (process.pid, *descendants(process.pid))])
        for process in started:
            process.wait()
        self._workers.clear()
        self._master = None

    def mend(self) -> None:
        """After a case that took a worker away: two are there and run again."""
        for pid, process in list(self._workers.items()):
            if pid in self._leaving:
                kill_all([pid, *descendants(pid)])
                process.wait()
            if process.poll() is not None:
                del self._workers[pid]
        self._leaving.clear()
        while len(self._workers) < 2:
            self.add_worker()

    # -- executors --------------------------------------------------------------------------------------------------

    def executors(self) -> list[int]:
        """The Java processes that run tasks."""
        found = (pid for worker in self._workers for pid in descendants(worker))
        return [pid for pid in found if _EXECUTOR in command_of(pid)]

    def paused(self) -> list[int]:
        """Python workers that have paused themselves at a fault."""
        return [p for worker in self._workers for p in descendants(worker) if state_of(p) == "T"]

    def executor_of(self, process_id: int) -> int:
        """The executor that a Python worker belongs to."""
        return next(pid for pid in ancestors(process_id) if _EXECUTOR in command_of(pid))

    def worker_of(self, process_id: int) -> int:
        """The Spark worker that started this."""
        return next(pid for pid in ancestors(process_id) if pid in self._workers)

    def kill_executor(self, executor: int) -> None:
        """As when its machine loses power: Java, Python and whatever they had under way."""
        kill_all([executor, *descendants(executor)])

    def freeze(self, worker: int) -> list[int]:
        """Stop a whole machine: the Spark worker and its executors; gives all that is to be thawed, Java first."""
        found = [worker, *descendants(worker)]
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        return found

    def decommission(self, worker: int) -> None:
        """Take a worker out of service, politely; it gets no work any more, and `mend` makes another."""
        self._leaving.add(worker)
        os.kill(worker, signal.SIGPWR)

    def wait_decommissioned(self, worker: int) -> None:
        """Until the worker has told those it works for."""
        log = self.folder / f"{self._names[worker]}.log"
        wait_for(lambda: "Decommission" in log.read_text(errors="replace"), "the worker is taken out of service")

    def idle(self) -> None:
        """Wait until no executor of an earlier application is left."""
        wait_for(lambda: not self.executors(), "the executors of the last application have ended")

    def lose_shuffle_files(self) -> list[str]:
        """Remove what stages left for the next ones; their names."""
        found = [path for path in self.folder.rglob("shuffle_*") if path.is_file()]
        found += [path for root in _local_folders(self.executors()) for path in root.rglob("shuffle_*")]
        for path in found:
            path.unlink(missing_ok=True)
        return [path.name for path in found]


def conf(environment: Mapping[str, str], names: tuple[str, ...], folder: Path) -> dict[str, str]:
    """For an application whose executors need these variables; what happened is noted in the folder, see `events`."""
    (folder / "events").mkdir(exist_ok=True)
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
    java = f"{java} {class_archive.options({})}".strip()
    return {
        **CONF,
        **{f"spark.executorEnv.{name}": environment[name] for name in names if name in environment},
        "spark.executor.extraJavaOptions": java,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.eventLog.buffer.kb": "1k",
    }


def _local_folders(executors: list[int]) -> Iterator[Path]:
    """Where executors keep blocks: Spark makes a folder for each application below the system's temporary one."""
    for pid in executors:
        try:
            variables = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        for variable in variables:
            name, _, value = variable.partition("=")
            if name == "SPARK_EXECUTOR_DIRS":
                yield from (Path(part) for part in value.split(os.pathsep) if part)
