"""Every page of the dashboard and its data, over locations that are healthy, lagging, stopped, crashed and stuck."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from holdfast.checkpoint.history import checkpoints
from holdfast.checkpoint.pulse import Pulse
from holdfast.core.hiding import hide, hide_text
from holdfast.dashboard import places
from holdfast.dashboard.openapi import CALLS
from holdfast.dashboard.places import Places
from holdfast.dashboard.web import Site
from holdfast.errors import ConfigError
from tests.unit import scenes
from tests.unit.inprocess import DAMAGES, Endpoint, Engine, PreparingSink, damage

URL = "http://localhost:8787"
PAGES = ("", "/checkpoints", "/summary", "/configuration", "/transactions")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One location of each kind; tests that change one make their own."""
    with scenes.in_memory() as made:
        scenes.healthy(made, count=130)
        for make in (scenes.lagging, scenes.stopped, scenes.crashed, scenes.stuck):
            make(made)
        yield made


@pytest.fixture
def tmp() -> Iterator[Path]:
    with scenes.in_memory() as made:
        yield made


def client(*paths: Path | str, **options: Any) -> TestClient:
    return TestClient(Site(Places([str(path) for path in paths]), **options).app(), base_url=URL)


def get(browser: TestClient, path: str) -> Any:
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.contract("R3")
def test_the_overview_says_who_is_healthy_the_worst_first(folder: Path) -> None:
    found = get(client(folder), "/api/pipelines")
    assert [p["health"] for p in found["pipelines"]] == ["down", "down", "degraded", "healthy", "healthy"]
    assert found["health"] == {"down": 2, "unknown": 0, "degraded": 1, "healthy": 2}
    cards = {p["slug"]: p for p in found["pipelines"]}
    assert cards["orders"]["running"]
    assert 20 < cards["orders"]["rows_per_second"] < 80
    assert cards["orders"]["lag_seconds"] == 0
    assert cards["invoices"]["pending"] == 10
    assert cards["invoices"]["lag_seconds"] > 40
    assert cards["invoices"]["oldest_pending"] is not None
    assert cards["ledger"]["last_failure"]["type"] == "LostError"
    assert cards["clicks"]["state"] == "ended"
    page = client(folder).get("/").text
    assert page.index("ledger") < page.index("invoices") < page.index("orders")
    assert "5 pipelines" not in page
    assert ">1</strong>" in page


@pytest.mark.parametrize("slug", ["orders", "invoices", "clicks", "payments", "ledger"])
@pytest.mark.parametrize("page", PAGES)
def test_every_page_renders_and_has_its_data_under_api(folder: Path, slug: str, page: str) -> None:
    browser = client(folder)
    shown = browser.get(f"/p/{slug}{page}")
    assert shown.status_code == 200
    data = re.search(r'<a href="([^"]+)">data of this page</a>', shown.text)
    assert data is not None
    assert get(browser, html.unescape(data[1]))["slug"] == slug


@pytest.mark.contract("R3")
def test_a_pipeline_shows_its_sinks_drivers_and_who_fenced_whom(folder: Path) -> None:
    found = get(client(folder), "/api/pipelines/payments")
    assert [(d["generation"], d["state"], d["fenced_by"]) for d in found["drivers"]] == [
        (2, "dead", None),
        (1, "fenced", 2),
        (0, "fenced", 1),
    ]
    assert found["timeline"][-1]["status"] == "interrupted"
    lag = get(client(folder), "/api/pipelines/invoices")
    search = next(s for s in lag["status"]["sinks"] if s["sink"] == "search")
    assert (search["checkpoints"], search["may_lag"]) == (10, True)
    assert "refused the connection" in search["problem"]
    page = client(folder).get("/p/invoices").text
    assert "refused the connection" in page
    assert "generation 2" in client(folder).get("/p/payments").text


def test_what_is_stuck_is_shown_with_its_ways_out(folder: Path) -> None:
    stuck = get(client(folder), "/api/pipelines/ledger")["stuck"]
    assert [(f["checkpoint_id"], f["sink"]) for f in stuck] == [(30, "warehouse")]
    assert set(stuck[0]["ways"]) == {"try-again", "produce-anyway", "give-up", "mark-delivered"}
    page = client(folder).get("/p/ledger").text
    assert f"holdfast resolve {folder / 'ledger'} 30 --sink warehouse" in page
    assert 'class="act"' not in page
    assert 'class="act"' in client(folder, allow_actions=True).get("/p/ledger").text


@pytest.mark.contract("R3")
def test_what_is_stuck_is_decided_although_its_query_left_no_statistics_of_it(folder: Path) -> None:
    shown = get(client(folder), "/api/pipelines/ledger")
    [stuck] = shown["stuck"]
    last = shown["timeline"][-1]
    assert (last["checkpoint_id"], last["status"], last["rows"]) == (stuck["checkpoint_id"], "decided", stuck["rows"])


def test_a_checkpoint_shows_its_records_as_they_are_on_disk(folder: Path) -> None:
    browser = client(folder)
    found = get(browser, "/api/pipelines/orders/checkpoints/129")
    assert [r["name"] for r in found["records"]] == [
        "decisions/0.129.json",
        "commits/129.search.json",
        "commits/129.warehouse.json",
    ]
    assert json.loads(found["records"][0]["text"])["checkpoint_id"] == 129
    assert found["committables_total"] == 8
    assert {s["sink"]: s["committed"] for s in found["sinks"]} == {"warehouse": True, "search": True}
    assert set(found["statistics"]["durations"]) == {"tasks", "decide", "commit", "notify"}
    page = browser.get("/p/orders/checkpoints/129").text
    assert "decisions/0.129.json" in page
    # So old that its records are pruned: the statistics are still there.
    old = get(browser, "/api/pipelines/orders/checkpoints/3")
    assert (old["decided"], old["records"], old["statistics"]["status"]) == (False, [], "complete")
    assert "pruned" in browser.get("/p/orders/checkpoints/3").text
    assert browser.get("/p/orders/checkpoints/99999").status_code == 404


def test_the_history_is_turned_page_by_page(folder: Path) -> None:
    browser = client(folder)
    seen: list[int] = []
    path: str | None = "/api/pipelines/orders/checkpoints?limit=40"
    while path is not None:
        found = get(browser, path)
        seen += [c["checkpoint_id"] for c in found["checkpoints"]]
        path = None if found["older"] is None else f"/api/pipelines/orders/checkpoints?limit=40&before={found['older']}"
    assert seen == list(range(129, -1, -1))
    known = {c.checkpoint_id: c for c in checkpoints(folder / "orders")}
    page = get(browser, "/api/pipelines/orders/checkpoints?limit=5&before=60")["checkpoints"]
    assert [(c["checkpoint_id"], c["rows"]) for c in page] == [(n, known[n].rows) for n in range(59, 54, -1)]
    assert "before=65" in browser.get("/p/orders/checkpoints?limit=5&before=60").text


def test_a_checkpoint_that_two_runs_wrote_about_is_one_on_every_page(tmp: Path) -> None:
    scene = scenes.Scene(tmp, "two", back=60)
    scene.search.down = ConnectionError("away")
    scene.run(2)
    scene.search.down = None
    scene.restart()
    scene.run(1)
    scene.catch_up()
    found = places.Place("two", str(scene.location)).history.between(0, 1)
    assert found == checkpoints(scene.location)[:2]
    assert [s.status for s in found] == ["complete", "complete"]


def test_the_summary_has_least_median_p99_and_greatest(folder: Path) -> None:
    found = get(client(folder), "/api/pipelines/orders/summary?last=100")
    known = sorted(c.rows for c in checkpoints(folder / "orders", last=100))
    assert found["measures"]["rows"] == {"min": known[0], "median": known[49], "p99": known[98], "max": known[99]}
    assert found["statuses"] == {"complete": 100}
    assert set(found["measures"]) >= {"duration", "tasks", "decide", "commit", "notify", "bytes", "rows_per_second"}


def test_the_configuration_hides_secrets(folder: Path) -> None:
    found = client(folder).get("/api/pipelines/orders/configuration")
    assert found.json()["spark"]["settings"] == {"spark.sql.shuffle.partitions": "8", "spark.app.password": "***"}
    assert "hunter2" not in client(folder).get("/p/orders/configuration").text + found.text
    assert [s["sink"] for s in found.json()["sinks"]] == ["warehouse", "search"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:hunter2@db/shop", "postgresql://me:***@db/shop"),
        ("password=hunter2 host=db", "password=*** host=db"),
        ('sasl.password: "hunter2"', "sasl.password: ***"),
        ("fs.s3a.secret.key=hunter2, x", "fs.s3a.secret.key=***, x"),
        ("the token hf1-orders-3 is fine", "the token hf1-orders-3 is fine"),
    ],
)
def test_secrets_in_text_are_hidden(text: str, shown: str) -> None:
    assert hide_text(text) == shown


def test_secrets_in_data_are_hidden_by_their_keys() -> None:
    data = {"sasl.jaas.config": "x", "a": [{"api_key": "y", "table": "t"}], "token": "hf1-x", "ssl": True}
    assert hide(data) == {
        "sasl.jaas.config": "***",
        "a": [{"api_key": "***", "table": "t"}],
        "token": "hf1-x",
        "ssl": True,
    }


def test_brokers_are_asked_only_when_somebody_wants_it(folder: Path) -> None:
    found = get(client(folder), "/api/pipelines/orders/transactions")
    assert "does not say where the brokers are" in found["error"]
    assert found["transactions"] == []


def test_a_damaged_record_is_an_error_text(tmp: Path) -> None:
    scene = scenes.Scene(tmp, "orders", back=60)
    scene.run(4)
    scene.catch_up()
    record = scene.location / "holdfast" / "decisions" / "0.2.json"
    for how in DAMAGES:
        good = damage(record, how)
        browser = client(tmp)
        for path in ("/", "/p/orders", "/p/orders/checkpoints/3", "/p/orders/checkpoints/2", "/p/orders/configuration"):
            answer = browser.get(path)
            assert answer.status_code == 200, path
            assert "damaged" in answer.text or path.endswith("configuration"), path
        assert get(browser, "/api/pipelines")["pipelines"][0]["health"] == "degraded"
        record.write_bytes(good)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"checkpoint_id": "x"}',
        '{"checkpoint_id":9,"durations":{"a":"b"}}',
        "7",
        '{"checkpoint_id":9,"status":"complete","sinks":{"a":{"rows":"many"}}}',
        '{"checkpoint_id":9,"status":"complete","parts":[7]}',
        '{"checkpoint_id":9,"status":"complete","parts":[{"rows":"many"}]}',
        '{"checkpoint_id":9,"status":"complete","state":{"rows":"many"}}',
    ],
)
def test_a_damaged_history_is_an_error_text(tmp: Path, line: str) -> None:
    scene = scenes.Scene(tmp, "orders", back=60)
    scene.run(2)
    (scene.location / "holdfast" / "history" / "7.0.jsonl").write_text(line + "\n")
    browser = client(tmp)
    assert "7.0.jsonl is damaged" in browser.get("/p/orders").text
    assert "7.0.jsonl is damaged" in browser.get("/p/orders/checkpoints/1").text
    for path in ("/p/orders/summary", "/p/orders/checkpoints", "/api/pipelines/orders/summary"):
        answer = browser.get(path)
        assert answer.status_code == 503
        assert "move it away" in answer.text


def test_a_huge_file_is_not_read(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LARGEST", 20_000)
    scene = scenes.Scene(tmp, "orders", back=60)
    scene.run(3)
    log = scene.location / "holdfast"
    for name in ("decisions/0.1.json", "commits/0.search.json"):
        (log / name).write_bytes(b"x" * 20_001)
    browser = client(tmp)
    found = get(browser, "/api/pipelines/orders")
    assert len(found["status"]["damaged"]) == 2
    assert "larger than 20,000 bytes" in browser.get("/p/orders").text
    told = get(browser, "/api/pipelines/orders/checkpoints/0")
    huge = next(r for r in told["records"] if r["name"] == "commits/0.search.json")
    assert (huge["text"], "larger than" in huge["error"]) == (None, True)
    (log / "history" / "0.0.jsonl").write_bytes(b"x" * 20_001)
    assert "0.0.jsonl is larger" in browser.get("/p/orders").text


def test_a_location_that_vanishes_is_an_error_text(tmp: Path) -> None:
    scene = scenes.Scene(tmp, "orders", back=60)
    browser = client(tmp)
    (scene.location / "holdfast").rename(tmp / "elsewhere")
    assert get(browser, "/api/pipelines")["health"]["unknown"] == 1
    assert "is not a checkpoint location" in browser.get("/").text
    for path in ("/p/orders", "/p/orders/summary", "/api/pipelines/orders"):
        assert browser.get(path).status_code == 503


def test_script_in_every_name_and_text_is_shown_as_text(tmp: Path) -> None:
    scenes.hostile(tmp)
    browser = client(tmp, allow_actions=True)
    slug = get(browser, "/api/pipelines")["pipelines"][0]["slug"]
    assert re.fullmatch(r"[a-z0-9-]+", slug)
    for path in ("/", *(f"/p/{slug}{page}" for page in PAGES), f"/p/{slug}/checkpoints/2", f"/p/{slug}/checkpoints/3"):
        answer = browser.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert "&lt;img" in answer.text or path.endswith(("/transactions", "/summary")), path
        # Scripts of ours, by address (that of the plots where there are some), and none of theirs; no picture at all.
        assert answer.text.count("<script") == (3 if path == f"/p/{slug}" else 2), path
        assert "<img" not in answer.text, path
        assert "{{7*7}}" in answer.text or "&lt;img" not in answer.text, path


def test_pages_have_nothing_inline(folder: Path) -> None:
    browser = client(folder, allow_actions=True)
    for path in ("/", *(f"/p/ledger{page}" for page in PAGES), "/p/ledger/checkpoints/30"):
        text = browser.get(path).text
        assert " style=" not in text
        assert not re.search(r"\son\w+=", text)
        assert re.findall(r"(?:src|href)=\"((?!/|#)[^\"]*)\"", text) == [], "only addresses of our own"
        for script in re.findall(r"<script[^>]*>(.*?)</script>", text, re.S):
            assert script == ""


def test_the_assets_are_shipped_and_ask_nobody_else(folder: Path) -> None:
    browser = client(folder)
    own = ("app.js", "ages.js", "morph.js", "orders.js", "plots.js", "theme.js", "style.css", "icon.svg", "uplot.css")
    for name in (*own, "uplot.js"):
        answer = browser.get(f"/static/{name}")
        assert answer.status_code == 200
        text = answer.text.removeprefix("/*! https://github.com/leeoniya/uPlot (v1.6.32) */")
        assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    licence = (resources.files("holdfast.dashboard") / "static" / "uplot.LICENSE").read_text()
    assert "MIT License" in licence and "Copyright" in licence
    assert browser.get("/favicon.ico").headers["content-type"] == "image/svg+xml"


def test_the_api_is_described(folder: Path) -> None:
    from openapi_spec_validator import validate

    document = get(client(folder), "/api/openapi.json")
    validate(document)
    assert set(document["paths"]) == {call.path for call in CALLS}


def test_names_are_made_once_and_are_no_paths(tmp: Path) -> None:
    first, second = scenes.Scene(tmp / "a", "orders", back=60), scenes.Scene(tmp / "b", "orders", back=60)
    found = Places([str(first.location), str(second.location), str(first.location)])
    assert [(p.slug, p.location) for p in found] == [
        ("orders", str(first.location)),
        ("orders-2", str(second.location)),
    ]
    assert [p.location for p in Places([str(tmp / "a")])] == [str(first.location)]
    with pytest.raises(ConfigError, match="no log in it"):
        Places([str(tmp)])


def test_a_fingerprint_changes_with_what_is_shown_and_not_by_itself(tmp: Path) -> None:
    scene = scenes.Scene(tmp, "orders", back=60)
    scene.catch_up()
    place = places.Place("orders", str(scene.location))
    seen = [place.fingerprint()]
    assert place.fingerprint() == seen[0]
    for change in (
        lambda: scene.run(1),
        lambda: scene.plan(),
        lambda: scene.beat(),
        lambda: scene.restart(),
        lambda: scene.end(),
    ):
        change()
        seen.append(place.fingerprint())
    assert len(set(seen)) == len(seen)


def test_a_location_on_s3_is_shown_as_a_local_one(bucket: str) -> None:
    location = f"s3://{bucket}/checkpoints/orders"
    engine = Engine(f"{location}/holdfast", PreparingSink(Endpoint()), clock=time.time)
    for number in range(3):
        engine.run(number, [1, 2, 3])
    Pulse(engine.log).beat(engine.coordinator.deliveries, now=True)
    browser = client(location)
    card = get(browser, "/api/pipelines")["pipelines"][0]
    assert (card["slug"], card["health"], card["last_complete"]) == ("orders", "healthy", 2)
    assert browser.get("/p/orders").status_code == 200
    assert len(get(browser, "/api/pipelines/orders/checkpoints/1")["records"]) == 2
    place = places.Place("orders", location)
    before = place.fingerprint()
    engine.run(3, [4])
    assert place.fingerprint() != before
    with pytest.raises(ConfigError, match="not a checkpoint location"):
        Places([f"s3://{bucket}/checkpoints"])
