"""Any part of a long history, without reading all of it twice: for those who turn its pages."""

from __future__ import annotations

import re

from holdfast.checkpoint.history import (
    SEGMENT,
    CheckpointStats,
    Merged,
    log_location,
    merge_segment,
    read_checkpoints,
    read_segment,
    segments,
    stats_of,
)
from holdfast.checkpoint.limited import open_limited

_IDS = re.compile(rb'^\{"checkpoint_id":(\d{1,18}),', re.M)


class HistoryPages:
    """The history of one location; remembers which checkpoints are in which full segment, as those never change."""

    def __init__(self, checkpoint_location: str, *, largest: int | None = None) -> None:
        self._location, self._largest = checkpoint_location, largest
        self._spans: dict[str, tuple[int, int]] = {}

    def newest(self, count: int) -> list[CheckpointStats]:
        """The newest ones, oldest first."""
        return read_checkpoints(self._location, last=count, largest=self._largest)

    def between(self, first: int, last: int) -> list[CheckpointStats]:
        """Those with numbers from `first` to `last`, oldest first."""
        storage = open_limited(log_location(self._location), self._largest)
        merged = Merged()
        there = segments(storage)
        for name in reversed(there):
            span = self._spans.get(name)
            if span is not None and (span[0] > last or span[1] < first):
                continue
            data = read_segment(storage, name)
            ids = [int(text) for text in _IDS.findall(data)]
            if len(ids) >= SEGMENT and data.count(b"\n") == len(ids):
                self._spans[name] = min(ids), max(ids)
            span = self._spans.get(name)
            if span is None or (span[0] <= last and span[1] >= first):
                merge_segment(storage, name, data, merged, only=range(first, last + 1))
        self._spans = {name: self._spans[name] for name in there if name in self._spans}
        found = {stats.checkpoint_id: stats for stats in stats_of(merged)}
        for stats in self.newest(1):  # a batch under way is in no segment yet
            if first <= stats.checkpoint_id <= last:
                found.setdefault(stats.checkpoint_id, stats)
        return [found[number] for number in sorted(found)]
