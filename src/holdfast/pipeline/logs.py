"""Log lines of a run: text, or one JSON object a line; secrets of the job file are in neither."""

from __future__ import annotations

import json
import logging
import re
import sys
import time

from holdfast.pipeline.secrets import HidingFormatter, Secrets

_CHECKPOINT = re.compile(r"\bcheckpoint (\d+)\b")
_THREAD = "holdfast-"
#: how our messages name a sink, before its name is filled in; and what is filled in before it
_SINK, _FILLED_IN = re.compile(r"\bsink '?%[sr]"), re.compile(r"%[^a-zA-Z%]*[a-zA-Z]")


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `message`, `pipeline`, and `checkpoint` and `sink` where the line is about one."""

    def __init__(self, pipeline: str) -> None:
        super().__init__()
        self._pipeline = pipeline

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        message = record.getMessage()
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line: dict[str, object] = {"time": at, "level": record.levelname.lower(), "pipeline": self._pipeline}
        number = getattr(record, "checkpoint", None)
        found = _CHECKPOINT.search(message)
        if number is not None or found is not None:
            line["checkpoint"] = int(number if number is not None else found[1])  # type: ignore[index]
        sink = _sink(record, f"{_THREAD}{self._pipeline}-")
        if sink:
            line["sink"] = sink
        line |= {"logger": record.name, "message": message}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _sink(record: logging.LogRecord, own: str) -> str | None:
    """Which sink the line is about: as it says, or by its thread; a sink's loop runs in one that is called after it."""
    if hasattr(record, "sink"):
        return str(record.sink)
    named = _SINK.search(str(record.msg))
    if named is not None and isinstance(record.args, tuple):
        return str(record.args[len(_FILLED_IN.findall(record.msg[: named.start()].replace("%%", "")))])
    thread = record.threadName or ""
    return thread.removeprefix(own) if thread.startswith(own) else None


def set_up(pipeline: str, secrets: Secrets, *, as_json: bool) -> None:
    """Send what holdfast logs to standard error."""
    inner: logging.Formatter = (
        JsonFormatter(pipeline) if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HidingFormatter(inner, secrets))
    root = logging.getLogger("holdfast")
    for old in [h for h in root.handlers if isinstance(h.formatter, HidingFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    root.propagate = False
