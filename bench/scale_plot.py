"""The picture of the scale benchmark: how a driver's time grows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

Found = Mapping[tuple[int, int], list[float]]


def plot(quick: Found, slow: Found, beside: int, path: Path) -> None:
    """Two panels: by subtasks of one sink, and by sinks."""
    figure, (wide, many) = pyplot.subplots(1, 2, figsize=(11, 4))
    for label, found in (("log on a local disk", quick), ("log on a store that answers in 20 ms", slow)):
        _line(wide, {n: ms for (sinks, n), ms in found.items() if sinks == 1}, label)
    wide.set_title("one sink: driver's milliseconds a checkpoint, by Kafka transactions", fontsize="small")
    _line(many, {sinks: ms for (sinks, n), ms in quick.items() if n == beside}, f"{beside} subtasks each")
    many.set_title("driver's milliseconds a checkpoint, by sinks", fontsize="small")
    for axes in (wide, many):
        axes.set_ylim(bottom=0)
        axes.legend(fontsize="small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _line(axes: Any, found: Mapping[int, list[float]], label: str) -> None:
    places = sorted(found)
    if places:
        axes.plot(places, [statistics.median(found[n]) for n in places], "o-", label=label)
