"""What is shipped for Prometheus and Grafana works with a real Prometheus, and is made of metrics that exist (R3)."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.telemetry.grafana import dashboard
from holdfast.telemetry.names import BY_NAME, METRICS
from holdfast.telemetry.samples import Metrics
from holdfast.telemetry.serve import serve
from tests.servers.prometheus import Prometheus, promtool
from tests.unit import scenes

RULES = Path(str(files("holdfast.telemetry") / "rules.yml"))
_NAME = re.compile(r"\bholdfast_\w+")


def printed(what: str) -> str:
    result = CliRunner().invoke(app, ["monitoring", what])
    assert result.exit_code == 0
    return result.stdout


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_the_rules_are_right_and_ask_for_metrics_that_exist(tmp_path: Path) -> None:
    (tmp_path / "holdfast.rules.yml").write_text(printed("rules"))
    assert "SUCCESS" in promtool("check", "rules", str(tmp_path / "holdfast.rules.yml"))
    rules = yaml.safe_load(RULES.read_text())["groups"]
    asked = {name for group in rules for rule in group["rules"] for name in _NAME.findall(rule["expr"])}
    assert asked - set(BY_NAME) == set()
    for alert in alerts():
        assert set(alert["annotations"]) == {"summary", "description", "remedy"}, alert["alert"]


def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    """Promtool plays time: the values on the left make the alert fire, and those on the right do not."""
    played = {
        "HoldfastDown": ('holdfast_health{pipeline="p"}', "2x40", "1x40"),
        "HoldfastStuck": ('holdfast_stuck_checkpoints{pipeline="p"}', "1x40", "0x40"),
        "HoldfastRowsLost": ('holdfast_lost_rows{pipeline="p",sink="s"}', "5x40", "0x40"),
        "HoldfastUnreadable": ('holdfast_up{pipeline="p"}', "0x40", "1x40"),
        "HoldfastRestartLoop": ('holdfast_failed_runs{pipeline="p"}', "3x40", "2x40"),
        "HoldfastDegraded": ('holdfast_health{pipeline="p"}', "1x40", "0x40"),
        "HoldfastSinkLags": ('holdfast_pending_age_seconds{pipeline="p",sink="s"}', "901x40", "900x40"),
        "HoldfastDriversFight": ('holdfast_fenced_runs{pipeline="p"}', "0+1x40", "1x40"),
        "HoldfastCommitsFail": ('holdfast_commit_retries_total{pipeline="p",sink="s"}', "0+6x40", "0+1x40"),
        "HoldfastSourceLags": ('holdfast_source_lag_rows{pipeline="p"}', "9x40", "0x40"),
    }
    assert set(played) == {alert["alert"] for alert in alerts()}
    tests = []
    for name, (series, bad, good) in played.items():
        for values, fires in ((bad, True), (good, False)):
            stale = {"series": 'holdfast_freshness_seconds{pipeline="p"}', "values": "1000x40"}
            expression = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
            expected = [{"labels": "{}", "value": 1}] if fires else []
            tests.append(
                {
                    "interval": "1m",
                    "input_series": [{"series": series, "values": values}, stale],
                    "promql_expr_test": [{"expr": expression, "eval_time": "30m", "exp_samples": expected}],
                }
            )
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(file))


def test_the_grafana_dashboard_has_every_metric_once() -> None:
    found = json.loads(printed("grafana"))
    assert found == dashboard()
    panels = [p for p in found["panels"] if p["type"] != "row"]
    shown = [_NAME.findall(p["targets"][0]["expr"]) for p in panels]
    assert shown == [[metric.name] for metric in METRICS]
    assert [p["description"] for p in panels] == [metric.help for metric in METRICS]
    assert len({p["id"] for p in found["panels"]}) == len(found["panels"])
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in found["panels"]]
    assert len(set(places)) == len(places) and all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in panels)


@pytest.mark.contract("R3")
def test_a_real_prometheus_scrapes_it_records_alerts_and_answers_every_panel(tmp_path: Path) -> None:
    with scenes.in_memory() as folder:
        stuck = scenes.stuck(folder)
        running = scenes.Scene(folder, "orders", back=30)
        running.run(1)
        both = [Metrics("ledger", str(stuck.location)), Metrics("orders", str(running.location))]
        running.run(2)
        running.catch_up()
        serving = serve(lambda: both, 0)
        try:
            with Prometheus(tmp_path, f"127.0.0.1:{serving.port}", RULES) as prometheus:
                up = prometheus.until("holdfast_up == 1")
                assert {one["metric"]["pipeline"] for one in up} == {"ledger", "orders"}
                firing = prometheus.until('ALERTS{alertname="HoldfastStuck",alertstate="firing"}')
                assert [one["metric"]["pipeline"] for one in firing] == ["ledger"]
                rows = prometheus.until('holdfast_rows_total{pipeline="orders"}')
                counted = {one["metric"]["sink"]: float(one["value"][1]) for one in rows}
                told = hf.checkpoints(running.location)[1:3]
                assert counted == {sink: sum(s.sinks[sink]["rows"] for s in told) for sink in ("warehouse", "search")}
                running.run(1)
                prometheus.until("pipeline_sink:holdfast_rows:rate5m")
                prometheus.until("pipeline_phase:holdfast_checkpoint_seconds:mean5m")
                healthy = {rule["name"] for group in prometheus.ask("rules")["groups"] for rule in group["rules"]
                           if rule["health"] == "ok"}  # fmt: skip
                assert healthy >= {alert["alert"] for alert in alerts()}
                known = set(prometheus.ask("label/__name__/values"))
                for panel in (p for p in dashboard()["panels"] if p["type"] != "row"):
                    asked = panel["targets"][0]["expr"].replace("$pipeline", ".*").replace("$__rate_interval", "1m")
                    found = prometheus.query(asked)
                    name = _NAME.findall(asked)[0]
                    assert found or name not in known or BY_NAME[name].kind == "counter", asked
        finally:
            serving.close()
