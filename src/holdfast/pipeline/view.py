"""What a run looks like while it runs: a table that changes on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.text import Text

from holdfast.checkpoint.history import checkpoints
from holdfast.errors import StorageError
from holdfast.pipeline.secrets import Secrets
from holdfast.pipeline.table import SHOWN, checkpoint_line, checkpoint_table
from holdfast.spark.query import HoldfastQuery
from holdfast.spark.stream import HoldfastWriter
from holdfast.telemetry.samples import source_lag

logger = logging.getLogger("holdfast")
#: seconds between two plain lines
LINE_EVERY = 10.0


class Facts:
    """What is known of a run now, from Spark's progress, the history and the delivery loops."""

    def __init__(self, query: HoldfastQuery, location: str) -> None:
        progress: Mapping[str, Any] = query.lastProgress or {}
        coordinator = None if query.running is None else query.running.coordinator
        self.rows_in = float(progress.get("inputRowsPerSecond") or 0.0)
        self.rows_out = float(progress.get("processedRowsPerSecond") or 0.0)
        self.lag = source_lag(progress)
        try:
            # One more than is shown: the newest may just have begun.
            self.last = checkpoints(location, last=SHOWN + 1)
        except StorageError as error:
            self.last = []
            logger.debug("the history cannot be read just now: %s", error)
        self.finished = [stats for stats in self.last if stats.durations]
        self.pending = 0 if coordinator is None else len(coordinator.pending)
        deliveries = [] if coordinator is None else coordinator.deliveries
        self.sinks = [(d.sink.name, d.standing) for d in deliveries]


class View:
    """Shows one run on a console."""

    def __init__(self, console: Console, secrets: Secrets, *, json_lines: bool = False) -> None:
        self._console, self._secrets, self._json = console, secrets, json_lines
        self._screen: Screen | None = None
        self._query: HoldfastQuery | None = None
        self._location = self._pipeline = ""
        self._next_line = 0.0
        self._told: int | None = None

    def started(self, query: HoldfastQuery, writer: HoldfastWriter) -> None:
        """See Watcher."""
        self._query, self._location, self._pipeline = query, writer.location, writer.pipeline
        names = ", ".join(sink.name for sink in writer.sinks)
        self.say(f"pipeline {writer.pipeline} runs: {names}; checkpoints in {writer.location}")
        if self._console.is_terminal and not self._json:
            self._screen = Screen(console=self._console, auto_refresh=False, transient=True)
            self._screen.start()

    def look(self) -> None:
        """See Watcher."""
        if self._query is None or (self._screen is None and time.monotonic() < self._next_line):
            return
        self._next_line = time.monotonic() + LINE_EVERY
        facts = Facts(self._query, self._location)
        if self._screen is not None:
            self._screen.update(self._table(facts), refresh=True)
        else:
            self._tell(facts)

    def say(self, sentence: str) -> None:
        """See Watcher."""
        text = self._secrets.hide(sentence)
        if self._json:
            self._console.file.write(json.dumps({"event": text, "pipeline": self._pipeline}) + "\n")
            self._console.file.flush()
        else:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """See Watcher."""
        if self._screen is not None:
            self._screen.stop()
        elif self._query is not None and not self._json:
            self._tell(Facts(self._query, self._location))
        self._screen = self._query = None

    def _tell(self, facts: Facts) -> None:
        """A line about the newest checkpoint that is over, once."""
        if facts.finished and facts.finished[-1].checkpoint_id != self._told:
            self._told = facts.finished[-1].checkpoint_id
            last = facts.finished[-1]
            self.say(checkpoint_line(last, facts.rows_out, lag=facts.lag, pending=facts.pending))

    def _table(self, facts: Facts) -> RenderableType:
        lag = "" if facts.lag is None else f"  lag {facts.lag:,} rows"
        head = Text(
            f"{self._pipeline}  in {facts.rows_in:,.0f} rows/s  out {facts.rows_out:,.0f} rows/s{lag}"
            f"  pending {facts.pending}"
        )
        troubles = [
            Text(self._secrets.hide(f"{name}: {standing.doing}: {standing.problem}"), style="yellow")
            for name, standing in facts.sinks
            if standing.problem
        ]
        return Group(head, checkpoint_table(facts.last), *troubles)
