"""A Grafana dashboard, made from the table of metrics: every one of them has a panel."""

from __future__ import annotations

from typing import Any

from holdfast.telemetry.names import COUNTER, SECTIONS, Metric

UID = "holdfast"
#: Grafana's grid has 24 columns
_ACROSS, _WIDTH, _HEIGHT = 24, 8, 7
_CHOSEN = 'pipeline=~"$pipeline"'
_RED, _AMBER, _GREEN = "red", "orange", "green"
#: numbers that stand for words
_WORDS = {
    "holdfast_health": {"0": ("healthy", _GREEN), "1": ("degraded", _AMBER), "2": ("down", _RED)},
    "holdfast_up": {"0": ("cannot be read", _RED), "1": ("readable", _GREEN)},
}
#: more than none of these is bad
_NONE_IS_GOOD = ("holdfast_stuck_checkpoints", "holdfast_lost_rows", "holdfast_failed_runs")


def dashboard() -> dict[str, Any]:
    """What Grafana's "Import dashboard" takes."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, metrics in SECTIONS.items():
        panels.append(_placed(len(panels), {"type": "row", "title": title, "collapsed": False}, 0, y, _ACROSS, 1))
        y += 1
        for number, metric in enumerate(metrics):
            x = number * _WIDTH % _ACROSS
            panels.append(_placed(len(panels), _panel(metric), x, y, _WIDTH, _HEIGHT))
            y += _HEIGHT if x + _WIDTH == _ACROSS or number == len(metrics) - 1 else 0
    return {
        "uid": UID,
        "title": "holdfast",
        "description": "Made by `holdfast monitoring grafana` from the table of metrics.",
        "tags": ["holdfast", "spark"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_data_source(), _pipelines()]},
        "panels": panels,
    }


def expression(metric: Metric) -> str:
    """What a panel asks Prometheus."""
    by = ", ".join(("pipeline", *metric.labels))
    if metric.kind == COUNTER:
        return f"sum by ({by}) (rate({metric.name}{{{_CHOSEN}}}[$__rate_interval]))"
    return f"max by ({by}) ({metric.name}{{{_CHOSEN}}})"


def _panel(metric: Metric) -> dict[str, Any]:
    title = metric.name.removeprefix("holdfast_").removesuffix("_total").replace("_", " ")
    counted = metric.kind == COUNTER
    words = _WORDS.get(metric.name)
    defaults: dict[str, Any] = {"unit": {"bytes": "Bps", "s": "s"}.get(metric.unit, "ops") if counted else metric.unit}
    if words is not None:
        mapped = {value: {"text": text, "color": colour} for value, (text, colour) in words.items()}
        defaults["mappings"] = [{"type": "value", "options": mapped}]
    if metric.name in _NONE_IS_GOOD:
        steps = [{"color": _GREEN, "value": None}, {"color": _RED, "value": 1}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "type": "stat" if words is not None or metric.name in _NONE_IS_GOOD else "timeseries",
        "title": f"{title}, a second" if counted else title,
        "description": metric.help,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "expr": expression(metric),
                "legendFormat": " ".join(f"{{{{{label}}}}}" for label in ("pipeline", *metric.labels)),
            }
        ],
    }


def _placed(number: int, panel: dict[str, Any], x: int, y: int, w: int, h: int) -> dict[str, Any]:
    return {"id": number + 1, **panel, "gridPos": {"x": x, "y": y, "w": w, "h": h}}


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _pipelines() -> dict[str, Any]:
    return {
        "name": "pipeline",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": "label_values(holdfast_up, pipeline)", "refId": "pipelines"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }
