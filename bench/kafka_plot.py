"""The picture of the Kafka benchmark: throughput, latency, and how rows became visible."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from bench.kafka_measure import Measured
from bench.report import RESULTS


def plot(measured: Mapping[str, Measured], names: Mapping[str, str]) -> Path:
    """Three panels; a way without a figure is left out of the panel."""
    colours = dict(zip(names, pyplot.get_cmap("tab10").colors, strict=False))
    figure, (rates, delays, curves) = pyplot.subplots(1, 3, figsize=(16, 4.5))
    _bars(rates, {w: [run.steady / 1000 for run in m.runs] for w, m in measured.items()}, names, colours)
    rates.set_title("30 to 95 per cent of a run: thousand rows a second")
    _bars(delays, {w: [live.p50 for live in m.live] for w, m in measured.items()}, names, colours)
    delays.set_title("from a row's own time until it is visible: p50, milliseconds")
    for way, found in measured.items():
        if not found.runs:
            continue
        # the run whose end is in the middle
        middle = sorted(range(len(found.runs)), key=lambda n: found.runs[n].whole)[len(found.runs) // 2]
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
