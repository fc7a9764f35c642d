"""Drivers that outlive the end of their query, so that the next run of a crash test need not start Spark.

Java and Spark getting up are nine tenths of the time of a run. A driver whose query has ended, well or with an error,
waits for a run of another case. For the pipeline of that case it is a new process: no pipeline comes to the same one
twice, so every recovery is made by another process than the one that met the fault. One that is killed is gone, as
ever, with its Java and its workers. Both `make test` and `make matrix` do this (`--cold`: not). Whether the process of
a query that failed ends by itself is for tests/crash/test_failures.py to see, whose drivers serve once.

Which faults a run meets is in a file beside its host: some of Spark's workers keep the environment of its Java.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from holdfast.core import faults

#: runs before a driver is replaced: what Spark keeps of each adds up
RUNS = 12
#: how many wait: most cases need two or three, one after the other
WAITING = 3


class Host:
    """One driver process: told what to run by its standard input, says by a pipe how that ended."""

    def __init__(self, command: list[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        answers, answer = os.pipe()
        self.command, self.answers, self.log, self.runs = command, answers, log, 0
        self._faults = log.with_suffix(".faults")
        self._faults.touch()
        #: what its Spark was told when it began
        self.conf: Mapping[str, str] = {}
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, str(answer)], cwd=cwd, env={**env, faults.VARIABLE: f"@{self._faults}"},
                stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True, pass_fds=[answer],
            )  # fmt: skip
        os.close(answer)

    def run(self, spec: Mapping[str, Any], fault: str, once: str, log: Path) -> WarmRun:
        """Begin one, which meets this fault and leaves word of it there."""
        self.runs += 1
        self._faults.write_text(f"{fault}\n{once}")
        assert self.process.stdin is not None
        run = WarmRun(self, log)
        self.process.stdin.write(json.dumps(spec).encode() + b"\n")
        self.process.stdin.flush()
        return run

    def answer(self) -> int | None:
        """The exit code that a process of its own would have had, once the run has ended."""
        told = os.read(self.answers, 1) if select.select([self.answers], [], [], 0)[0] else b""
        return int(told) if told else None

    def end(self) -> None:
        """Kill it and all it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.close()

    def close(self) -> None:
        """It is gone."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        os.close(self.answers)


class WarmRun:
    """One run in a host, for whoever expects a process: its end, or that of the process."""

    def __init__(self, host: Host, log: Path) -> None:
        self._host, self._log = host, log
        self._begin = host.log.stat().st_size
        self.pid = host.process.pid
        self.returncode: int | None = None
        #: it has ended, and the process lives on
        self.reusable = False

    def poll(self) -> int | None:
        """See Popen."""
        if self.returncode is None:
            self.returncode = self._host.process.poll()
            # One that is about to end gives nothing to read, and poll will say how it ended.
            if self.returncode is None:
                self.returncode = self._host.answer()
                self.reusable = self.returncode is not None
            if self.returncode is not None:
                self.copy_log()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """See Popen."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self._host.process.args, timeout or 0)
            time.sleep(0.05)
        return code

    def send_signal(self, number: int) -> None:
        """See Popen."""
        self._host.process.send_signal(number)

    def copy_log(self) -> None:
        """What was printed since it began, Java's words among it, goes to the run's own file."""
        with self._host.log.open("rb") as file:
            file.seek(self._begin)
            self._log.write_bytes(file.read())


class Pool:
    """Hosts, of which a few wait."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, 0
        self._waiting: list[Host] = []
        self._busy: dict[int, Host] = {}

    def start(
        self,
        command: list[str],
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        spec: Mapping[str, Any],
        before: Collection[int],
    ) -> WarmRun:
        """A run in a host that waits, but in none of those `before`, or else in a new one."""
        conf = spec.get("conf", {})
        alike = (host for host in self._waiting if (host.command, host.conf) == (command, conf))
        host = next((host for host in alike if host.process.pid not in before), None)
        if host is not None:
            self._waiting.remove(host)
        else:
            self._made += 1
            plain = {key: value for key, value in env.items() if key != faults.ONCE}
            host = Host(command, plain, cwd, self._folder / f"driver-{self._made}.log")
            host.conf = conf
        self._busy[host.process.pid] = host
        return host.run(spec, env.get(faults.VARIABLE, ""), env.get(faults.ONCE, ""), log)

    def give_back(self, run: WarmRun) -> None:
        """It has ended."""
        host = self._busy.pop(run.pid)
        if host.runs >= RUNS:
            host.end()
            return
        if len(self._waiting) >= WAITING:
            self._waiting.pop(0).end()  # the one that nobody wanted for longest: its settings may be of another store
        self._waiting.append(host)

    def forget(self, run: WarmRun) -> None:
        """It is gone."""
        host = self._busy.pop(run.pid, None)
        if host is not None:
            host.close()

    def close(self) -> None:
        """End them all."""
        for host in (*self._waiting, *self._busy.values()):
            host.end()
        self._waiting.clear()
        self._busy.clear()


#: set by tests.crash.matrix and by tests/crash/conftest.py
POOL: Pool | None = None
