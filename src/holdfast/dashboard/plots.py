"""Plots as numbers: where bars and lines go in a drawing of 1000 units width; the templates make SVG of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.dashboard.numbers import PHASES

WIDTH, HEIGHT = 1000.0, 160.0
#: a timeline has room for at least so many checkpoints
ROOM = 60


def nice(value: float) -> float:
    """The next round number, at or above: where an axis ends."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * unit >= value * (1 - 1e-9))


def timeline(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A bar for each checkpoint, the newest at the right; its phases on top of each other."""
    top = nice(max((float(entry["seconds"]) for entry in entries), default=0.0))
    slot = WIDTH / max(ROOM, len(entries))
    left = WIDTH - slot * len(entries)
    bars = []
    for n, entry in enumerate(entries):
        parts, y = [], HEIGHT
        for phase in (*PHASES, *(p for p in entry["durations"] if p not in PHASES)):
            height = float(entry["durations"].get(phase, 0.0)) / top * (HEIGHT - 8)
            if height > 0:
                y -= height
                parts.append({"phase": phase if phase in PHASES else "other", "y": _r(y), "height": _r(height)})
        bars.append(
            {
                "entry": entry,
                "x": _r(left + n * slot),
                "width": _r(slot),
                "bar": _r(max(0.5, slot * 0.78)),
                "parts": parts,
            }
        )
    return {"bars": bars, "top": top}


def line(values: Sequence[float | None]) -> dict[str, Any]:
    """A line with the area below it; a gap where nothing is known."""
    known = [float(v) for v in values if v is not None]
    top = nice(max(known, default=0.0))
    step = WIDTH / max(1, len(values) - 1)
    points = [(n * step, HEIGHT - float(v) / top * (HEIGHT - 8)) for n, v in enumerate(values) if v is not None]
    path = "".join(f"{'L' if n else 'M'}{_r(x)} {_r(y)}" for n, (x, y) in enumerate(points))
    area = f"{path}L{_r(points[-1][0])} {HEIGHT:g}L{_r(points[0][0])} {HEIGHT:g}Z" if points else ""
    return {"path": path, "area": area, "top": top, "last": known[-1] if known else None}


def split(parts: Mapping[str, float]) -> list[dict[str, Any]]:
    """One bar, cut by shares: phase, x and width."""
    whole = sum(parts.values()) or 1.0
    found, x = [], 0.0
    for phase in (*PHASES, *(p for p in parts if p not in PHASES)):
        width = float(parts.get(phase, 0.0)) / whole * WIDTH
        if width > 0:
            found.append({"phase": phase if phase in PHASES else "other", "x": _r(x), "width": _r(max(width, 1.5))})
            x += width
    return found


def _r(value: float) -> float:
    return round(value, 2)
