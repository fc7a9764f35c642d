"""What a writer of `write_stream` has not, whichever Spark it belongs to: where rows go is the sinks' business."""

from __future__ import annotations

from typing import Any, NoReturn

from holdfast.errors import ConfigError


class Refusals:
    """Comes before a DataStreamWriter, classic or of Spark Connect: the two have no base in common."""

    def trigger(self, *args: Any, **kwargs: Any) -> Any:
        """See DataStreamWriter; micro-batches only."""
        if kwargs.get("continuous") is not None or kwargs.get("realTime") is not None:
            raise ConfigError("trigger: holdfast delivers micro-batches: processingTime, availableNow or once")
        return super().trigger(*args, **kwargs)  # type: ignore[misc]

    def format(self, source: str) -> NoReturn:
        """Not available: rows go to the sinks."""
        _refuse("format")

    def foreachBatch(self, func: Any) -> NoReturn:
        """Not available: rows go to the sinks."""
        _refuse("foreachBatch")

    def foreach(self, f: Any) -> NoReturn:
        """Not available: rows go to the sinks."""
        _refuse("foreach")

    def toTable(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available: rows go to the sinks."""
        _refuse("toTable")


def _refuse(method: str) -> NoReturn:
    raise ConfigError(f"{method}() does not go with write_stream: rows go to its sinks; call start()")
