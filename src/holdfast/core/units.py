"""Sizes and durations as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta

from holdfast.errors import ConfigError

#: what an error says that an option must be
A_SIZE = 'a size such as "128MB", "64MiB" or a number of bytes'
A_DURATION = 'a duration such as "90s", "15m", "1h" or seconds'
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SIZES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(option: str, value: object) -> int | None:
    """Bytes of `"128MB"`, `"64MiB"` or a number of bytes; None stays None."""
    if value is None:
        return None
    number = _number(value, _SIZES)
    if number is None or not math.isfinite(number) or number < 1:
        raise ConfigError(f"{option} must be {A_SIZE}, not {value!r}")
    return int(number)


def parse_duration(option: str, value: object) -> float | None:
    """Seconds of `"15m"`, `"1h"`, a timedelta or a number of seconds; None stays None."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        number: float | None = value.total_seconds()
    else:
        number = _number(value, _DURATIONS)
    if number is None or not math.isfinite(number) or number < 0:
        raise ConfigError(f"{option} must be {A_DURATION}, not {value!r}")
    return float(number)


def size(count: int) -> str:
    """Bytes for people."""
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _number(value: object, units: Mapping[str, float]) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in units:
        return None
    return float(match[1]) * units[match[2].lower()]
