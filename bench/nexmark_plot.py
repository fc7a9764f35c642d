"""The picture of the Nexmark benchmark: events a second by query and way, and seconds until a killed one goes on."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from bench.kafka_report import NAMES
from bench.nexmark_report import WAYS, Findings, Found
from bench.report import RESULTS, ROOT

#: In the docs is the picture of the last run that was told nothing, as is its table.
PICTURE = ROOT / "docs" / "images" / "nexmark.png"


def plot(found: Findings, *, whole: bool) -> Path:
    """Two panels of bars, a group for each query; a dot is a run."""
    figure, (rates, restarts) = pyplot.subplots(1, 2, figsize=(14, 4.5))
    _bars(rates, found, lambda one: [run.steady / 1000 for run in one.measured.runs])
    rates.set_title("thousand events a second, from 30 to 95 per cent of a run", fontsize="small")
    _bars(restarts, found, lambda one: [kill.first for kill in one.kills])
    restarts.set_title("seconds from the start after a kill to the first new row", fontsize="small")
    figure.tight_layout()
    path = PICTURE if whole else RESULTS / "details" / "nexmark.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return path


def _bars(axes: Any, found: Findings, samples: Callable[[Found], list[float]]) -> None:
    colours, width = pyplot.get_cmap("tab10").colors, 0.8 / len(WAYS)
    for number, way in enumerate(WAYS):
        label: str | None = NAMES[way]
        for place, ways in enumerate(found.values()):
            values = samples(ways[way]) if way in ways else []
            if not values:
                continue
            at = place + (number - (len(WAYS) - 1) / 2) * width
            axes.bar(at, statistics.median(values), width, color=colours[number], alpha=0.6, label=label)
            axes.plot([at] * len(values), values, ".", color="black", markersize=3)
            label = None  # once in the legend
    axes.set_xticks(range(len(found)), list(found))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
