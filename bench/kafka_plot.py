"""The picture of the Kafka benchmark: throughput, latency, and how rows became visible."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from bench.report import RESULTS


def plot(measured: Mapping[str, Any], names: Mapping[str, str], batch: int) -> Path:
    """Three panels; a way without a figure is left out of the panel."""
    colours = dict(zip(names, pyplot.get_cmap("tab10").colors, strict=False))
    figure, (rates, delays, curves) = pyplot.subplots(1, 3, figsize=(16, 4.5))
    _bars(rates, {w: [batch / s / 1000 for s in m.steady] for w, m in measured.items()}, names, colours)
    rates.set_title("steady micro-batches: thousand rows a second")
    _bars(delays, {w: m.latency for w, m in measured.items()}, names, colours)
    delays.set_title("1,000 rows, from trigger to visible: milliseconds")
    for way, found in measured.items():
        if not found.whole:
            continue
        # the run whose end is in the middle
        middle = sorted(range(len(found.whole)), key=found.whole.__getitem__)[len(found.whole) // 2]
        points = found.curves[middle]
        times, rows = [0.0, *(p[0] for p in points)], [0.0, *(p[1] / 1e6 for p in points)]
        curves.step(times, rows, where="post", color=colours[way], label=names[way])
    curves.set_title("million rows visible, seconds since the process was started")
    curves.legend(fontsize="small")
    figure.tight_layout()
    path = RESULTS / "details" / "kafka.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _bars(axes: Any, samples: Mapping[str, list[float]], names: Mapping[str, str], colours: Mapping[str, Any]) -> None:
    """Medians as bars, every sample as a dot."""
    shown = [way for way, values in samples.items() if values]
    for place, way in enumerate(reversed(shown)):
        axes.barh(place, statistics.median(samples[way]), color=colours[way], alpha=0.6)
        axes.plot(samples[way], [place] * len(samples[way]), ".", color="black", markersize=3)
    axes.set_yticks(range(len(shown)), [names[way] for way in reversed(shown)], fontsize="small")
