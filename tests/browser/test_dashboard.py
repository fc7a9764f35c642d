"""The dashboard in a real browser: on a phone, without its server, orders with and without the word, hostile names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from holdfast.checkpoint.status import read_status
from tests.browser.conftest import PAGES, PATIENCE, Looking, Serving, serious
from tests.unit import scenes

expect.set_options(timeout=PATIENCE)
Look = Callable[..., Looking]


def test_on_a_phone_nothing_is_wider_than_the_screen(all_kinds: Serving, look: Look) -> None:
    looking = look(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    for name in ("overview", "pipeline", "stuck", "checkpoint", "configuration"):
        looking.page.goto(all_kinds.url + PAGES[name])
        expect(looking.page.locator("h1")).to_be_attached()
        assert looking.page.evaluate("document.documentElement.scrollWidth") <= 360, name
        looking.picture(f"{name}-phone", whole=False)


def test_a_page_says_when_it_is_not_live(folder: Path, look: Look) -> None:
    scene = scenes.Scene(folder / "away", "orders", back=30)
    scene.run(1)
    looking = look()
    with Serving(folder / "away") as serving:
        looking.page.goto(serving.url)
        expect(looking.page.locator("#live")).to_have_text("live")
    expect(looking.page.locator("#live")).to_have_text("not live")


def test_an_order_needs_the_word_and_a_confirmation(folder: Path, look: Look) -> None:
    scene = scenes.stuck(folder / "order")
    with Serving(folder / "order", allow_actions=True) as serving:
        assert serving.site.actions is not None
        looking = look()
        page = looking.page
        page.goto(f"{serving.url}/p/ledger")
        page.get_by_role("button", name="give-up").click()
        page.get_by_label("The operator's word").fill("a guess")
        page.get_by_role("button", name="What would it mean?").click()
        expect(page.get_by_role("alert")).to_contain_text("missing or wrong")
        assert any("401" in text for text in looking.complaints)
        looking.complaints.clear()
        assert len(read_status(str(scene.location)).stuck) == 1
        page.get_by_label("The operator's word").fill(serving.site.actions.word)
        page.get_by_role("button", name="What would it mean?").click()
        expect(page.locator("#order-text")).to_contain_text("missing in sink 'warehouse' for ever")
        looking.picture("order", whole=False)
        serious(looking, "order")
        assert len(read_status(str(scene.location)).stuck) == 1, "a question changes nothing"
        page.get_by_role("button", name="Yes: give-up").click()
        expect(page.locator("#order-text")).to_contain_text("recorded")
        page.get_by_role("button", name="Close").click()
        expect(page.get_by_role("region", name="What operators decided")).to_contain_text("give-up by")
        expect(page.get_by_text("Stuck: somebody has to decide")).to_have_count(0)
    assert not read_status(str(scene.location)).stuck


def test_a_savepoint_is_made_from_the_page(folder: Path, look: Look) -> None:
    scenes.stopped(folder / "ended")
    with Serving(folder / "ended", savepoints=folder / "saved", allow_actions=True) as serving:
        assert serving.site.actions is not None
        looking = look()
        page = looking.page
        page.goto(f"{serving.url}/p/clicks")
        expect(page.get_by_role("region", name="Savepoints").last).to_contain_text("none of this pipeline")
        page.get_by_role("button", name="make a savepoint").click()
        page.get_by_label("The operator's word").fill(serving.site.actions.word)
        page.keyboard.press("Enter")
        expect(page.locator("#order-text")).to_contain_text("nothing else changes")
        page.get_by_role("button", name="Yes: make a savepoint").click()
        expect(page.locator("#order-text")).to_contain_text("checkpoint 39 is in")
        page.get_by_role("button", name="Close").click()
        expect(page.get_by_role("region", name="Savepoints").last).to_contain_text("clicks-39-")
        expect(page.get_by_role("region", name="What operators decided")).to_contain_text("savepoint made by")
        looking.picture("savepoint")
        serious(looking, "savepoint")


def test_script_in_names_and_errors_does_nothing(folder: Path, look: Look) -> None:
    scenes.hostile(folder / "hostile")
    with Serving(folder / "hostile", allow_actions=True) as serving:
        slug = next(iter(serving.site.places)).slug
        looking = look()
        for path in (
            "/",
            f"/p/{slug}",
            f"/p/{slug}/checkpoints",
            f"/p/{slug}/checkpoints/3",
            f"/p/{slug}/configuration",
        ):
            looking.page.goto(serving.url + path)
            expect(looking.page.locator("#live")).to_have_text("live")
            expect(looking.page.locator("main")).to_contain_text("<img src=x")
            assert looking.page.title() != "owned"
            assert looking.page.locator("img").count() == 0
            # The same by what is put in place when something changes.
            serving.site.feed.tell(slug)
        looking.picture("hostile")
