"""The process beside the driver: `python -m holdfast.doors.beside SOCKET`, started by the first batch of a query.

It holds what a query run needs to have in one place over its batches: the generation, the delivery loops, the timer.
It ends with its run: when a batch fails, when Spark begins another run of the query, or with the driver's JVM; then
after it has completed what sinks hold back for later rows.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.doors import talk
from holdfast.doors.jvm import Jvm
from holdfast.doors.orders import Answer
from holdfast.doors.run import DoorRun
from holdfast.errors import EngineError, HoldfastError, first_line
from holdfast.spark.private import pickled
from holdfast.spark.running import LOOK, TICK

logger = logging.getLogger("holdfast")
#: seconds that a run that has failed waits for Spark's abort
LINGER = 5.0


class Beside:
    """Answers Spark's workers, one at a time."""

    def __init__(self, jvm: Jvm) -> None:
        self._driver = jvm
        self._run: DoorRun | None = None
        self._asked = threading.Lock()
        #: why the run cannot go on: noticed between two batches, and as Spark was told
        self._noticed: HoldfastError | None = None
        self._failure: HoldfastError | None = None
        #: nobody will ask any more
        self.done = threading.Event()

    @property
    def wanted(self) -> bool:
        """Whether Spark may ask for another one."""
        return self._driver.alive

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to one request."""
        with self._asked:
            try:
                return self._steps[request["do"]](self, request)
            except Exception as error:  # noqa: BLE001  raised in the worker that asked
                if self._failure is None:
                    self._fail(error)
                return talk.failed(error)

    def _begin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        options, schema = request["options"], request["schema"]
        if self._noticed is not None and self._failure is None:
            raise self._noticed  # a data source cannot tell Spark before its next batch (rule 17)
        if self._failure is not None or (self._run is not None and not self._run.goes_on(options, schema)):
            # Spark has begun the query anew: it is a new run, with a generation of its own.
            self._end(EngineError("Spark has ended the query in the middle of this batch"))
            return {talk.AGAIN: True}
        if self._run is None:
            self._run = DoorRun(options, schema)
        order = self._run.begin()
        return {"order": base64.b64encode(pickled(order)).decode()}

    def _commit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._run is None or self._failure is not None:
            raise self._failure or EngineError("Spark commits a batch that nobody has begun: start the query again")
        self._run.commit(request["batch"], [Answer.parse(text) for text in request["answers"]])
        return {}

    def _abort(self, request: Mapping[str, Any]) -> dict[str, Any]:
        why = EngineError(f"Spark has given up batch {request['batch']}: a task failed, or the query was stopped")
        self._end(self._failure or why)
        return {}

    _steps: Mapping[str, Callable[[Beside, Mapping[str, Any]], dict[str, Any]]] = {
        "begin": _begin,
        "commit": _commit,
        "abort": _abort,
    }

    def _fail(self, error: BaseException) -> None:
        known = error if isinstance(error, HoldfastError) else EngineError(f"{type(error).__name__}: {error}")
        self._failure = known
        if self._run is None:
            self.done.set()
        else:
            threading.Timer(LINGER, self._end_alone, [known]).start()

    def _end_alone(self, error: HoldfastError) -> None:
        with self._asked:
            self._end(error)

    def _end(self, error: HoldfastError | None, *, finish: bool = False) -> None:
        """The run is over."""
        if self._run is not None:
            if error is not None:
                self._run.abort(error)
            self._run.close(error if not self._run.idle or self._failure is not None else None, finish=finish)
        self._failure = self._failure or error
        self.done.set()

    def watch(self) -> None:
        """Until nobody will ask any more: the timer, and an eye on Spark."""
        ticked = time.monotonic()
        while not self.done.wait(LOOK):
            if not self._driver.alive:
                logger.info("Spark's Java process has ended")
                gone = EngineError("Spark's Java process has ended in the middle of this batch")
                if self._run is not None:
                    self._run.hurry()
                with self._asked:
                    idle = self._run is None or self._run.idle
                    self._end(None if idle else gone, finish=True)
            elif self._run is not None and self._noticed is None and time.monotonic() >= ticked + TICK:
                self._noticed = self._run.tick()
                if self._noticed is not None:
                    logger.error("the query fails with its next batch: %s", first_line(self._noticed))
                ticked = time.monotonic()


def main() -> None:
    """Listen, say so, and go on until the run is over."""
    place = Path(sys.argv[1])
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="holdfast beside Spark: %(message)s")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of whoever started Spark is not ours: Spark's own is
    told = json.load(sys.stdin)
    beside = Beside(Jvm(*told["jvm"]))

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            reply = beside.answer(json.loads(self.rfile.readline()))
            self.wfile.write(json.dumps(reply).encode() + b"\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = False  # so that it waits for those that answer

    place.unlink(missing_ok=True)
    server = Server(str(place), Handler)
    mine = place.stat().st_ino
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.write(1, b"ready\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    beside.watch()
    server.shutdown()
    server.server_close()
    if place.exists() and place.stat().st_ino == mine:
        place.unlink(missing_ok=True)
        if not beside.wanted:
            place.with_suffix(".lock").unlink(missing_ok=True)
    os._exit(0)  # a thread that hangs in an endpoint holds nobody up


if __name__ == "__main__":
    main()
