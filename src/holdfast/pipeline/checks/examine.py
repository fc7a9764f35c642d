"""Does the checks: those of each endpoint side by side, each within a bounded time; what goes wrong is a finding."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import RESTART, HoldfastError, RecordError, SinkError, StorageError
from holdfast.pipeline.checks import cassandra, files, kafka, log, plan, postgres, spark
from holdfast.pipeline.checks.registry import CHECKS, Check, Finding, Level, Problem, also
from holdfast.pipeline.checks.situation import Situation
from holdfast.sinks.fan import Fan
from holdfast.spark.stream import HoldfastWriter, refuse_speculation

#: who add their checks to the list by being imported
SYSTEMS = (log, spark, plan, kafka, postgres, cassandra, files)
#: of a sink whose table or folder each row names: what can be asked before there is a row
OF_THE_SERVER = (
    "postgres-reach", "postgres-prepared-transactions", "postgres-rights", "cassandra-reach", "cassandra-replication",
    "sqlite-file",
)  # fmt: skip
#: seconds for all checks of one endpoint
PATIENCE = 60.0

also("job", None, "The job can be built", remedy="Mend the job as the message says")
also(
    "spark-speculation", None, "No task is run twice at the same time",
    remedy="Set spark.speculation=false for this application",
)  # fmt: skip
also(
    "no-answer", None, "Every endpoint answers in time",
    remedy="See that the endpoint works: it was reached, and then did not answer",
)  # fmt: skip


def examine(
    session: Callable[[], SparkSession], writer: Callable[[SparkSession], HoldfastWriter], *, patience: float = PATIENCE
) -> list[Finding]:
    """Build a job and look at everything; the findings, the good ones too."""
    found: list[Finding] = []
    try:
        running = session()
        found = _one(CHECKS["spark-speculation"], "spark", lambda: _speculation(running))
        if found[0].level is Level.FATAL:
            return found  # nothing can be built with it
        built = writer(running)
    except HoldfastError as error:
        return [*found, _finding(CHECKS["job"], "job", _problem(error))]
    return [*found, _ok(CHECKS["job"], "job"), *look(built, patience=patience)]


def look(writer: HoldfastWriter, *, patience: float = PATIENCE) -> list[Finding]:
    """Everything that can be known of a query that was built and not started."""
    return findings(Situation.of(writer), patience=patience)


def findings(situation: Situation, *, patience: float = PATIENCE, only: str = "") -> list[Finding]:
    """Everything that is found in a situation; `only` by checks whose names begin so."""
    end = time.monotonic() + patience
    pipeline = _Group(situation, None, only)
    found = pipeline.wait(end, patience)
    if not pipeline.read:
        return found  # nothing can be compared with it
    groups = [_Group(situation, subject, only) for subject in (*situation.sources, *situation.sinks)]
    end = time.monotonic() + patience
    for group in groups:
        found += group.wait(end, patience)
    return found


class _Group:
    """The checks of the pipeline or of one endpoint, in a thread: what hangs holds up no other, and not us."""

    def __init__(self, situation: Situation, subject: Any, only: str) -> None:
        self._named_by_rows = isinstance(subject, Fan)
        self._situation, self._subject, self._only = (
            situation,
            subject.template if self._named_by_rows else subject,
            only,
        )
        self._name: str = situation.pipeline if subject is None else subject.name
        self._found: list[Finding] = []
        self._doing = "log-store"
        self._bug: BaseException | None = None
        #: whether the checkpoint location could be read
        self.read = subject is not None
        self._thread = threading.Thread(target=self._run, name=f"holdfast-check-{self._name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.read = self.read or self._read()
            for entry in _about(self._subject, self._only) if self.read else ():
                if self._named_by_rows and entry.name not in OF_THE_SERVER:
                    continue
                self._doing = entry.name
                done = _one(entry, self._name, partial(self._do, entry))
                self._found = [*self._found, *done]
                if self._subject is not None and any(f.level is Level.FATAL and f.action == RESTART for f in done):
                    return  # it is away: the others would wait for it just as long
        except BaseException as error:  # noqa: BLE001  raised again by whoever waits
            self._bug = error

    def _read(self) -> bool:
        try:
            return bool(self._situation.run.pipeline)
        except StorageError as error:
            self._found = [_finding(CHECKS["log-store"], self._name, _problem(error))]
        except HoldfastError as error:
            self._found = [_finding(CHECKS["log-same"], self._name, _problem(error))]
        return False

    def _do(self, entry: Check) -> Iterable[Problem]:
        assert entry.function is not None
        return entry.function(self._situation, *(() if self._subject is None else (self._subject,)))

    def wait(self, end: float, patience: float) -> list[Finding]:
        """What was found; who needs longer is told."""
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._bug is not None:
            raise self._bug
        found = list(self._found)
        if self._thread.is_alive():
            text = f"no answer in {patience:.0f} s, at check {self._doing}"
            found.append(_finding(CHECKS["no-answer"], self._name, Problem(Level.FATAL, text, action=RESTART)))
        return found


def _about(subject: Any, only: str) -> list[Check]:
    """The checks for a subject, None for the pipeline."""
    return [
        entry
        for entry in CHECKS.values()
        if entry.function is not None
        and entry.name.startswith(only)
        and (entry.about is None if subject is None else entry.about is not None and isinstance(subject, entry.about))
    ]


def _one(entry: Check, subject: str, do: Callable[[], Iterable[Problem]]) -> list[Finding]:
    problems: list[Problem] = []
    try:
        problems.extend(do())
    except HoldfastError as error:
        problems.append(_problem(error))
    found = [_finding(entry, subject, problem) for problem in problems]
    own = any(finding.check == entry.name for finding in found)
    return found if own else [_ok(entry, subject), *found]


def _speculation(running: SparkSession) -> Iterable[Problem]:
    refuse_speculation(running)
    return ()


def _problem(error: HoldfastError) -> Problem:
    """An error of a start, told before it."""
    away = isinstance(error, SinkError | StorageError) and not isinstance(error, RecordError)
    return Problem(Level.FATAL, str(error), action=RESTART if away and error.action == RESTART else error.action)


def _finding(entry: Check, subject: str, problem: Problem) -> Finding:
    name = problem.check or entry.name
    remedy = problem.remedy or CHECKS[name].remedy
    return Finding(name, problem.level, subject, " ".join(problem.text.split()), remedy, problem.action)


def _ok(entry: Check, subject: str) -> Finding:
    return Finding(entry.name, Level.OK, subject, entry.good)
