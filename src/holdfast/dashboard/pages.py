"""Pages from data: templates that escape whatever they are given, and how numbers are written."""

from __future__ import annotations

import json
import math
import time
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from holdfast import __version__
from holdfast.core.units import size
from holdfast.dashboard import plots
from holdfast.dashboard.numbers import PHASES
from holdfast.dashboard.places import Places

_DASH = "–"


def number(value: float | None) -> str:
    """1,234 or 12.3k: short enough for a tile."""
    if value is None:
        return _DASH
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.{1 if unit != 'k' else 0}f} {unit}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"


def seconds(value: float | None) -> str:
    """A duration in the unit that fits."""
    if value is None:
        return _DASH
    if value < 0.0005:
        return "0 ms" if value <= 0 else f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    for unit, length, smaller, part in (("min", 60, "s", 1), ("h", 3600, "min", 60), ("d", 86400, "h", 3600)):
        if value < length * (60 if length < 3600 else 24 if length == 3600 else math.inf):
            rest = int(value % length / part)
            return f"{int(value // length)} {unit}" + (f" {rest} {smaller}" if rest else "")
    return _DASH


def moment(milliseconds: float | None) -> str:
    """A time of the log, in the server's local time."""
    if milliseconds is None:
        return _DASH
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))
    except (OverflowError, OSError, ValueError):
        return str(milliseconds)


def ago(milliseconds: float | None) -> str:
    """How long ago, in words."""
    return _DASH if milliseconds is None else f"{seconds(max(0, int(time.time() - milliseconds / 1000)))} ago"


def pretty(value: Any) -> str:
    """JSON data in lines."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


class Pages:
    """Renders templates."""

    def __init__(self, places: Places, *, allow_actions: bool) -> None:
        self._env = Environment(
            loader=PackageLoader("holdfast.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = {
            "number": number,
            "seconds": seconds,
            "moment": moment,
            "ago": ago,
            "pretty": pretty,
            "bytes": size,
            "thousandth": lambda milliseconds: milliseconds / 1000,
        }
        self._env.filters.update(filters)
        self._env.globals.update(
            version=__version__, phases=PHASES, plots=plots, allow_actions=allow_actions, alone=len(places) == 1
        )

    def render(self, template: str, data: Any, slug: str | None) -> str:
        """A whole page."""
        return self._env.get_template(f"{template}.html").render(d=data, slug=slug, page=template)
