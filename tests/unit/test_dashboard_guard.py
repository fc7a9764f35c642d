"""Who may ask the dashboard, and for what: hosts, origins, tokens, wrong parameters, paths that lead elsewhere."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from typer.testing import CliRunner

from holdfast.checkpoint.savepoint import list_savepoints, verify
from holdfast.checkpoint.status import read_status
from holdfast.cli.app import app as cli
from holdfast.dashboard import actions
from holdfast.dashboard.feed import LISTENERS, Feed
from holdfast.dashboard.guard import LOOPBACK
from holdfast.dashboard.openapi import CALLS
from holdfast.dashboard.places import Places
from holdfast.dashboard.serve import names_of
from holdfast.dashboard.web import LONGEST_BODY, Site
from holdfast.errors import ConfigError
from tests.unit import scenes

HOST = "localhost:8787"
URL = f"http://{HOST}"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with scenes.in_memory() as made:
        scenes.Scene(made, "orders", back=60).run(5)
        yield made


@pytest.fixture
def stuck() -> Iterator[scenes.Scene]:
    with scenes.in_memory() as made:
        scene = scenes.Scene(made, "ledger", back=60)
        scene.run(2)
        from holdfast.errors import LostError

        scene.warehouse.fail("commit", *[LostError("gone")] * 20)
        with pytest.raises(LostError) as caught:
            scene.run(1)
        scene.end(caught.value)
        yield scene


def site(*paths: Path, **options: Any) -> Site:
    return Site(Places([str(path) for path in paths]), **options)


def client(*paths: Path, **options: Any) -> TestClient:
    return TestClient(site(*paths, **options).app(), base_url=URL)


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8787", "[::1]:8787", "LOCALHOST"])
def test_this_machine_by_any_of_its_names_is_answered(folder: Path, host: str) -> None:
    assert client(folder).get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[", "a b"])
def test_another_host_is_refused(folder: Path, host: str) -> None:
    answer = client(folder).get("/", headers={"Host": host})
    assert answer.status_code == 421
    assert "--allow-host" in answer.json()["message"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost", "http://localhost:1", "x"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_origin_is_refused(folder: Path, origin: str, method: str) -> None:
    browser = client(folder, allow_actions=True)
    path = "/api/pipelines" if method == "GET" else "/api/pipelines/orders/actions"
    assert browser.request(method, path, headers={"Origin": origin}).status_code == 403


def test_our_own_origin_is_answered_and_a_change_needs_one(folder: Path) -> None:
    browser = client(folder, allow_actions=True)
    assert browser.get("/api/pipelines", headers={"Origin": URL}).status_code == 200
    answer = browser.post("/api/pipelines/orders/actions", json={})
    assert (answer.status_code, "Origin" in answer.json()["message"]) == (403, True)


def test_every_answer_tells_the_browser_what_it_may_do(folder: Path) -> None:
    browser = client(folder)
    for path in ("/", "/p/orders", "/api/pipelines", "/static/app.js", "/nothing", "/p/nobody"):
        headers = browser.get(path).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert browser.get("/", headers={"Host": "evil.example"}).headers["content-security-policy"] == policy
    assert browser.get("/p/orders").headers["cache-control"] == "no-store"


OUTSIDE = (
    "..",
    "../..",
    "%2e%2e",
    "..%2f..",
    "....//",
    "/etc",
    "orders/../..",
    "orders%00",
    "C:\\",
    "orders%2f..",
    "~",
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_address_is_a_path(folder: Path, name: str) -> None:
    (folder / "secret.txt").write_text("hunter2")
    browser = client(folder)
    for path in (f"/p/{name}", f"/static/{name}", f"/static/{name}/secret.txt", f"/api/pipelines/{name}",
                 f"/api/pipelines/orders/checkpoints/{name}", f"/p/orders/checkpoints/{name}/secret.txt"):  # fmt: skip
        answer = browser.get(path)
        # Some are the same as another page once the client has tidied them up; none gives anything away.
        assert answer.status_code in (200, 400, 404), path
        assert "hunter2" not in answer.text
        assert "root:" not in answer.text


@pytest.mark.parametrize(
    "query",
    [
        "last=0",
        "last=x",
        "last=-1",
        "last=1e3",
        "last=100001",
        "last=9999999999999999999",
        "last=",
        "last=1&last=2",
        "last=%D9%A1",
    ],
)
def test_a_wrong_number_is_refused_by_name(folder: Path, query: str) -> None:
    answer = client(folder).get(f"/api/pipelines/orders/summary?{query}")
    assert answer.status_code == 400
    assert answer.json()["message"] == "last must be a number from 1 to 100000"


ANY = st.text(st.characters(codec="utf-8"), max_size=30) | st.integers().map(str)


@settings(max_examples=150)
@given(data=st.data())
def test_whatever_is_asked_the_answer_is_one_of_those_described(data: st.DataObject) -> None:
    browser = data_client()
    call = data.draw(st.sampled_from([call for call in CALLS if call.name != "events"]))
    slug = data.draw(st.sampled_from(["orders", "nobody"]) | ANY)
    number = data.draw(st.integers(0, 6).map(str) | ANY)
    path = call.path.replace("{slug}", quote(slug, safe="")).replace("{checkpoint_id}", quote(number, safe=""))
    query = data.draw(st.dictionaries(st.sampled_from(["before", "limit", "last", "x"]), ANY, max_size=3))
    if call.method == "get":
        answer = browser.get(path, params=query)
    else:
        value = st.none() | st.booleans() | st.integers() | ANY
        body = data.draw(st.dictionaries(st.sampled_from(["how", "checkpoint_id", "sink", "token"]), value) | value)
        word = data.draw(st.sampled_from(["right", "wrong"]))
        headers = {"Origin": URL, "Authorization": f"Bearer {_SITE.actions.word if word == 'right' else word}"}
        answer = browser.post(path, params=query, json=body, headers=headers)
    # An empty or slashed name is another address: not found, or the page above it.
    assert answer.status_code in {200, 404, 405, *call.codes}, (path, answer.text)
    assert isinstance(answer.json(), dict)
    if answer.status_code >= 400 and answer.status_code != 405:
        assert set(answer.json()) == {"error", "message"}


_SITE: Any = None


def data_client() -> TestClient:
    return TestClient(_SITE.app(), base_url=URL, follow_redirects=False)


@pytest.fixture(autouse=True, scope="module")
def _site(folder: Path) -> None:
    globals()["_SITE"] = site(folder, allow_actions=True)


# -- actions -----------------------------------------------------------------------------------------------------------

ORDER = {"how": "give-up", "checkpoint_id": 2, "sink": "warehouse"}


def post(browser: TestClient, path: str, word: str | None, body: Any) -> Any:
    headers = {"Origin": URL, **({} if word is None else {"Authorization": f"Bearer {word}"})}
    return browser.post(f"/api/pipelines/ledger/{path}", json=body, headers=headers)


def test_nothing_can_be_changed_unless_the_dashboard_was_started_so(stuck: scenes.Scene) -> None:
    answer = post(client(stuck.location), "actions", "anything", ORDER)
    assert answer.status_code == 403
    assert "--allow-actions" in answer.json()["message"]
    assert len(read_status(str(stuck.location)).stuck) == 1


@pytest.mark.parametrize("word", [None, "", "wrong", "ünïcode"])
@pytest.mark.parametrize("path", ["actions", "actions/confirm"])
def test_the_operators_word_is_needed_for_both_steps(stuck: scenes.Scene, word: str | None, path: str) -> None:
    headers = {"Origin": URL} if word is None else {"Origin": URL, "Authorization": f"Bearer {word}".encode()}
    browser = client(stuck.location, allow_actions=True)
    answer = browser.post(f"/api/pipelines/ledger/{path}", json=ORDER, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.contract("R3")
def test_an_order_is_asked_about_confirmed_once_and_recorded(
    stuck: scenes.Scene, caplog: pytest.LogCaptureFixture
) -> None:
    made = site(stuck.location, allow_actions=True)
    assert made.actions is not None
    browser, word = TestClient(made.app(), base_url=URL), made.actions.word
    plan = post(browser, "actions", word, ORDER).json()
    assert "may be missing in sink 'warehouse' for ever" in plan["question"]
    assert len(read_status(str(stuck.location)).stuck) == 1, "a plan changes nothing"
    with caplog.at_level(logging.WARNING, "holdfast"):
        done = post(browser, "actions/confirm", word, {"token": plan["token"]})
    assert done.status_code == 200, done.text
    assert done.json()["done"] == "give-up"
    assert "give-up of checkpoint 2, sink warehouse" in caplog.text
    found = read_status(str(stuck.location))
    assert not found.stuck
    assert [(r["how"], r["by"].endswith(" (dashboard)")) for r in found.resolutions] == [("give-up", True)]
    again = post(browser, "actions/confirm", word, {"token": plan["token"]})
    assert (again.status_code, "ask again" in again.json()["message"]) == (409, True)
    refused = post(browser, "actions", word, ORDER)
    assert (refused.status_code, "resolved already" in refused.json()["message"]) == (409, True)
    assert "give-up" in browser.get("/p/ledger").text
    # The query goes on without these rows.
    stuck.warehouse.failures.clear()
    stuck.restart()
    assert not stuck.engine.pending


def test_trying_again_is_an_order_too(stuck: scenes.Scene) -> None:
    made = site(stuck.location, allow_actions=True)
    browser, word = TestClient(made.app(), base_url=URL), made.actions.word if made.actions else ""
    plan = post(browser, "actions", word, {**ORDER, "how": "try-again"}).json()
    assert post(browser, "actions/confirm", word, {"token": plan["token"]}).json()["done"] == "try-again"
    assert not read_status(str(stuck.location)).stuck


def test_a_token_is_good_for_one_pipeline_and_not_for_long(
    stuck: scenes.Scene, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = site(stuck.location, folder, allow_actions=True)
    browser, word = TestClient(made.app(), base_url=URL), made.actions.word if made.actions else ""
    token = post(browser, "actions", word, ORDER).json()["token"]
    headers = {"Origin": URL, "Authorization": f"Bearer {word}"}
    other = browser.post("/api/pipelines/orders/actions/confirm", json={"token": token}, headers=headers)
    assert other.status_code == 409
    monkeypatch.setattr(actions, "GOOD_FOR", -1.0)
    token = post(browser, "actions", word, ORDER).json()["token"]
    assert post(browser, "actions/confirm", word, {"token": token}).status_code == 409
    assert len(read_status(str(stuck.location)).stuck) == 1


def test_what_changed_since_the_question_is_not_decided(stuck: scenes.Scene) -> None:
    made = site(stuck.location, allow_actions=True)
    browser, word = TestClient(made.app(), base_url=URL), made.actions.word if made.actions else ""
    token = post(browser, "actions", word, ORDER).json()["token"]
    stuck.warehouse.failures.clear()
    stuck.restart()  # it commits what is owed
    stuck.end()
    answer = post(browser, "actions/confirm", word, {"token": token})
    assert (answer.status_code, "not stuck" in answer.json()["message"]) == (409, True)


@pytest.mark.contract("R3")
def test_a_savepoint_is_asked_about_confirmed_made_and_written_down(tmp_path: Path) -> None:
    with scenes.in_memory() as folder:
        scene = scenes.stopped(folder, "ledger")
        made = Site(Places([str(scene.location)], savepoints=str(tmp_path)), allow_actions=True)
        browser, word = TestClient(made.app(), base_url=URL), made.actions.word if made.actions else ""
        assert post(browser, "actions/savepoint", "guess", {}).status_code == 401
        assert browser.get("/api/pipelines/ledger").json()["savepoints"]["savepoints"] == []
        plan = post(browser, "actions/savepoint", word, {}).json()
        assert f"made in {tmp_path}" in plan["question"] and list_savepoints(str(tmp_path)) == []
        done = post(browser, "actions/confirm", word, {"token": plan["token"]})
        assert done.status_code == 200, done.text
        [kept] = list_savepoints(str(tmp_path))
        assert (done.json()["path"], kept.checkpoint_id) == (kept.path, scene.next - 1)
        verify(kept)
        shown = browser.get("/api/pipelines/ledger").json()
        assert [s["path"] for s in shown["savepoints"]["savepoints"]] == [kept.path]
        assert [(a["what"], a["through"], a["details"]["path"]) for a in shown["actions"]] == [
            ("savepoint made", "dashboard", kept.path)
        ]
        assert kept.path in browser.get("/p/ledger").text
        assert browser.post(f"{URL}/api/pipelines/ledger/actions/savepoint", json={}).status_code == 403, "no Origin"


def test_without_a_folder_for_savepoints_there_is_none_to_be_made(stuck: scenes.Scene) -> None:
    made = site(stuck.location, allow_actions=True)
    browser, word = TestClient(made.app(), base_url=URL), made.actions.word if made.actions else ""
    answer = post(browser, "actions/savepoint", word, {})
    assert answer.status_code == 409 and "--savepoints" in answer.json()["message"]
    assert "make a savepoint" not in browser.get("/p/ledger").text


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"{}", b'{"token":1}', b'{"token":"a","x":1}', b"[" * 5000, b'"' + b"x" * LONGEST_BODY]
)
def test_a_wrong_body_is_refused(folder: Path, body: bytes) -> None:
    made = site(folder, allow_actions=True)
    headers = {"Origin": URL, "Authorization": f"Bearer {made.actions.word if made.actions else ''}"}
    browser = TestClient(made.app(), base_url=URL)
    assert browser.post("/api/pipelines/orders/actions/confirm", content=body, headers=headers).status_code == 400


# -- events ------------------------------------------------------------------------------------------------------------


def test_a_listener_is_told_what_changed_and_nobody_looks_when_nobody_listens() -> None:
    async def story(scene: scenes.Scene) -> None:
        feed = Feed(Places([str(scene.location)]), 0.01)
        stream = feed.events()
        assert "event: hello" in await anext(stream)
        while not feed._seen:  # the first look
            await asyncio.sleep(0.01)
        await asyncio.to_thread(scene.run, 1)
        told = await asyncio.wait_for(anext(stream), 60)
        assert json.loads(told.partition("data: ")[2]) == {"pipelines": ["orders"]}
        await stream.aclose()
        assert feed._task is None
        assert not feed._listeners

    with scenes.in_memory() as made:
        asyncio.run(story(scenes.Scene(made, "orders", back=60)))


def test_only_so_many_may_listen(folder: Path) -> None:
    made = site(folder)
    made.feed._listeners.update(object() for _ in range(LISTENERS))  # type: ignore[misc]
    answer = TestClient(made.app(), base_url=URL).get("/api/events")
    assert answer.status_code == 503


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_missing_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.dashboard._NEEDED", ("starlette", "no_such_package"))
    found = CliRunner().invoke(cli, ["dashboard", str(folder)])
    assert found.exit_code == 3
    assert "needs no_such_package: pip install 'holdfast[dashboard]'" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--refresh", "0s"], "--refresh must be at least 100ms"),
        (["--host", "0.0.0.0"], "--allow-host"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid"),
        (["/nowhere"], "/nowhere is not a checkpoint location"),
    ],
)
def test_wrong_use_is_told_before_anything_is_served(folder: Path, arguments: list[str], told: str) -> None:
    found = CliRunner().invoke(cli, ["dashboard", str(folder), *arguments])
    assert found.exit_code == 3
    assert told in found.stderr


def test_the_command_serves_and_says_where(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(made: Site, bound: Any, names: list[str], ready: Any) -> None:
        ready()
        bound.close()
        assert names == [*LOOPBACK, "127.0.0.1"]

    monkeypatch.setattr("holdfast.dashboard.serve.serve", serve)
    found = CliRunner().invoke(cli, ["dashboard", str(folder), "--port", "0", "--allow-actions", "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["url"].startswith("http://127.0.0.1:")
    assert told["pipelines"] == [str(folder / "orders")]
    assert len(told["operator_word"]) >= 32


def test_names_of_a_host() -> None:
    assert names_of("0.0.0.0", ["dash.example"]) == [*LOOPBACK, "dash.example"]
    with pytest.raises(ConfigError):
        names_of("::", ())
