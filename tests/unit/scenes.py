"""Checkpoint locations as queries leave them, healthy and not, made without Spark: for the dashboard and `watch`.

`python -m tests.unit.scenes FOLDER` makes one of each.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import FileCheckpointCommitter
from holdfast.checkpoint import records
from holdfast.checkpoint.pulse import Pulse
from holdfast.checkpoint.storage import LocalStorage
from holdfast.core.retry import Retry
from holdfast.errors import HoldfastError, LostError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink

#: no slash: it has to be a name of files, too
SCRIPT = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'<\\script>{{7*7}}"


class Clock:
    """Goes on a little whenever somebody looks at it."""

    def __init__(self, now: float, seed: int) -> None:
        self.now, self.random = now, random.Random(seed)

    def __call__(self) -> float:
        self.now += self.random.uniform(0.0004, 0.0016)
        return self.now


class SlowSink(PreparingSink):
    """Takes a while to commit, by the clock."""

    def __init__(self, endpoint: Endpoint, name: str, clock: Clock) -> None:
        super().__init__(endpoint, name)
        self.clock = clock

    def commit(self, checkpoint_id: int, committables: Any, tasks: Any) -> Any:
        self.clock.now += self.clock.random.uniform(0.03, 0.12)
        return super().commit(checkpoint_id, committables, tasks)


class Scene:
    """A pipeline into `warehouse` (two-phase) and `search` (write-ahead), and Spark's own files beside it."""

    def __init__(
        self, folder: Path, name: str, *, back: float = 1800.0, seed: int = 7, sink: str = "warehouse"
    ) -> None:
        self.location = folder / name
        self.sink = sink
        self.name = name
        self.clock = Clock(time.time() - back, seed)
        self.warehouse, self.search = Endpoint(), Endpoint()
        self.next = 0
        self.id = 0
        self.location.mkdir(parents=True, exist_ok=True)
        (self.location / "metadata").write_text('{"id":"6f1d7a52-5d0c-4b1f-9a52-0d7d0a7f0a11"}')
        self.engine = Engine(
            self.location / "holdfast", *self.sinks(), pipeline=name, clock=self.clock, retry=Retry(for_=0.25)
        )
        self.pulse = Pulse(self.engine.log, clock=self.clock)
        self.beat()

    def sinks(self) -> tuple[Any, Any]:
        committer = FileCheckpointCommitter(str(self.location) + "-marks")
        return SlowSink(self.warehouse, self.sink, self.clock), SendingSink(self.search, committer, "search")

    def spark(self, folder: str, number: int) -> None:
        settings = {"conf": {"spark.sql.shuffle.partitions": "8", "spark.app.password": "hunter2"}}
        offsets = json.dumps({"orders": {"0": self.id, "1": self.id // 2}})
        path = self.location / folder / str(number)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"v1\n{json.dumps(settings)}\n{offsets}\n" if folder == "offsets" else "v1\n{}\n")

    def run(self, count: int = 1, *, rows: int = 200, every: float = 5.0) -> None:
        """So many checkpoints, one each `every` seconds of its clock."""
        for _ in range(count):
            self.plan()
            size = max(4, int(rows * self.clock.random.uniform(0.6, 1.4)))
            ids = range(self.id, self.id + size)
            self.id += size
            begun = self.clock.now
            parts = [list(ids[n::4]) for n in range(4)]
            self.engine.run(self.next, *parts, on_task=self._work)
            self.spark("commits", self.next)
            self.next += 1
            self.clock.now = max(self.clock.now, begun + every)

    def plan(self) -> None:
        """Spark has planned the next batch."""
        self.spark("offsets", self.next)

    def _work(self, subtask: int) -> None:
        self.clock.now += self.clock.random.uniform(0.05, 0.3)

    def beat(self) -> None:
        """The driver says that it lives."""
        self.pulse.beat(self.engine.coordinator.deliveries, now=True)

    def end(self, error: BaseException | None = None) -> None:
        """The query ended, with an error or without."""
        self.engine.coordinator.close(0.0)
        self.pulse.end(self.engine.coordinator.deliveries, error)

    def catch_up(self) -> None:
        """The clock is that of everybody else, and the driver says that it lives."""
        self.clock.now = time.time()
        self.engine.coordinator.tick()
        self.beat()

    def restart(self) -> None:
        """Another driver; the one before it is simply gone."""
        self.engine.restart(*self.sinks())
        self.pulse = Pulse(self.engine.log, clock=self.clock)
        self.beat()


def healthy(folder: Path, name: str = "orders", count: int = 150) -> Scene:
    scene = Scene(folder, name, back=count * 5 + 1)
    scene.run(count)
    scene.catch_up()
    return scene


def lagging(folder: Path, name: str = "invoices") -> Scene:
    """A write-ahead sink whose endpoint is away."""
    scene = Scene(folder, name, back=60 * 5 + 1, seed=11)
    scene.run(50)
    scene.search.down = ConnectionError("search.example:9200 refused the connection")
    scene.run(10)
    scene.clock.now = time.time() - 90
    scene.engine.coordinator.tick()
    scene.catch_up()
    return scene


def stopped(folder: Path, name: str = "clicks") -> Scene:
    scene = Scene(folder, name, back=7200, seed=3)
    scene.run(40)
    scene.end()
    return scene


def crashed(folder: Path, name: str = "payments") -> Scene:
    """Two drivers died, one was fenced, and the last one is gone in the middle of a batch."""
    scene = Scene(folder, name, back=40 * 5 + 30, seed=5)
    scene.run(20)
    scene.restart()
    scene.run(15)
    scene.restart()
    scene.run(5)
    scene.plan()
    disown(scene)
    return scene


def stuck(folder: Path, name: str = "ledger", problem: str = "warehouse dropped a transaction") -> Scene:
    """The endpoint lost what was decided, and nothing can be matched."""
    scene = Scene(folder, name, back=160, seed=9)
    scene.run(30)
    scene.warehouse.fail("commit", *[LostError(problem)] * 50)
    try:
        scene.run(1)
    except HoldfastError as error:
        scene.end(error)
    scene.warehouse.failures.clear()
    disown(scene)
    return scene


def hostile(folder: Path) -> Scene:
    """Script in every name and text that anybody could have put there."""
    scene = Scene(folder, SCRIPT, back=200, sink=SCRIPT)
    scene.run(3)
    scene.warehouse.fail("commit", *[LostError(SCRIPT)] * 50)
    scene.search.down = ConnectionError(SCRIPT)
    try:
        scene.run(1)
    except HoldfastError as error:
        scene.beat()
        scene.end(error)
    log = scene.location / "holdfast"
    history = {"checkpoint_id": 2, "status": SCRIPT, "error": SCRIPT, "sinks": {SCRIPT: {"outcome": SCRIPT}}}
    (log / "history" / "5.0.jsonl").write_text(json.dumps({**history, "durations": {SCRIPT: 1.0}}) + "\n")
    (log / "commits" / f"3.{SCRIPT}.json").write_text(SCRIPT)
    (scene.location / "metadata").write_text(json.dumps({"id": SCRIPT}))
    (scene.location / "offsets" / "4").write_text(f"v1\n{json.dumps({'conf': {SCRIPT: SCRIPT}})}\n{SCRIPT}\n")
    rewrite(scene, {"host": SCRIPT})
    noted = {"what": SCRIPT, "by": SCRIPT, "host": SCRIPT, "at": 1, "through": SCRIPT, "details": {SCRIPT: SCRIPT}}
    (log / "actions").mkdir()
    (log / "actions" / "1.json").write_bytes(records.encode("action", "a" * 32, noted))
    (log / "actions" / "2.json").write_text(SCRIPT)
    return scene


def disown(scene: Scene) -> None:
    """Make the newest claim that of a process which is gone."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    rewrite(scene, {"pid": child.pid})


def rewrite(scene: Scene, changed: dict[str, Any]) -> None:
    """Change what the newest claim says."""
    storage = LocalStorage(str(scene.location / "holdfast"))
    name = f"generations/{scene.engine.log.generation}"
    body = records.decode(storage.read(name), name, "generation")
    kept = {key: value for key, value in body.items() if key not in ("version", "kind", "nonce")}
    storage.replace(name, records.encode("generation", body["nonce"], kept | changed))


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in memory, where there is some: checkpoints are made by the hundred, and each waits for the disk."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="holdfast-scenes-", dir=memory) as made:
        yield Path(made)


def long_history(folder: Path, count: int = 100_000, name: str = "archive") -> Scene:
    """A healthy pipeline with the statistics of so many more checkpoints before, as History writes them."""
    scene = Scene(folder, name, back=60)
    rng, begin = random.Random(1), int((time.time() - count * 2) * 1000)
    for segment in range(count // 100):
        lines = []
        for number in range(segment * 100, segment * 100 + 100):
            took = {"tasks": rng.uniform(0.2, 1.2), "decide": 0.004, "commit": rng.uniform(0.02, 0.1), "notify": 0.001}
            told = {"rows": 1000, "bytes": 64000, "subtasks": 4, "outcome": "committed"}
            entry = {
                "status": "complete", "started": begin + number * 2000, "durations": took, "rows": 1000, "bytes": 64000,
                "subtasks": 4, "sinks": {"warehouse": told, "search": told},
            }  # fmt: skip
            line = {"checkpoint_id": number, "generation": 0, **entry}
            lines.append(json.dumps(line, separators=(",", ":")))
        path = scene.location / "holdfast" / "history" / f"0.{segment}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    scene.next = count
    scene.restart()
    scene.run(3)
    scene.catch_up()
    return scene


def main() -> None:
    folder = Path(sys.argv[1])
    for make in (healthy, lagging, stopped, crashed, stuck):
        make(folder)


if __name__ == "__main__":
    main()
