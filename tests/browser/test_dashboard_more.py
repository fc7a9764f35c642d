"""The dashboard in a real browser: every page with axe, live changes, keyboard, colours."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.conftest import PAGES, PATIENCE, Looking, Serving, serious
from tests.unit import scenes

expect.set_options(timeout=PATIENCE)
Look = Callable[..., Looking]


def test_every_page_is_shown_without_a_complaint_and_is_accessible(all_kinds: Serving, look: Look) -> None:
    looking = look()
    for name, path in PAGES.items():
        looking.page.goto(all_kinds.url + path)
        expect(looking.page.locator("h1")).to_be_attached()
        looking.picture(name)
        serious(looking, name)
    dark = look(color_scheme="dark")
    for name in ("overview", "pipeline", "stuck"):
        dark.page.goto(all_kinds.url + PAGES[name])
        dark.picture(f"{name}-dark")
        serious(dark, f"{name}, dark")


def test_colours_follow_the_system_and_the_switch(all_kinds: Serving, look: Look) -> None:
    looking = look(color_scheme="dark")
    page = looking.page
    shade = "getComputedStyle(document.documentElement).backgroundColor"
    page.goto(all_kinds.url)
    dark = page.evaluate(shade)
    page.get_by_role("button", name="Colours: as the system").click()
    expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
    light = page.evaluate(shade)
    assert dark != light
    page.reload()
    assert page.evaluate(shade) == light, "it is remembered"
    page.get_by_role("button", name="Colours: light").click()
    assert page.evaluate(shade) == dark


def test_it_can_be_used_by_keyboard_alone(all_kinds: Serving, look: Look) -> None:
    page = look().page
    page.goto(all_kinds.url)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="orders", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="orders")).to_be_visible()
    page.locator(".timeline a").last.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#readout")).to_contain_text("checkpoint 67:")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Checkpoint 67")).to_be_visible()


def test_a_page_follows_a_query_that_runs_dies_and_recovers(folder: Path, look: Look) -> None:
    scene = scenes.Scene(folder / "live", "orders", back=30)
    scene.run(3)
    scene.catch_up()
    with Serving(folder / "live") as serving:
        looking, overview = look(), look()
        page = looking.page
        page.goto(f"{serving.url}/p/orders")
        overview.page.goto(serving.url)
        for one in (looking, overview):
            expect(one.page.locator("#live")).to_have_text("live")
        heading = page.locator("h1").element_handle()
        page.locator(".timeline a").last.focus()
        scene.run(2)
        scene.catch_up()
        expect(page.locator("[data-key='4'] th").first).to_be_visible()
        expect(page.locator(".timeline a")).to_have_count(5)
        assert page.evaluate("document.activeElement.dataset.key") == "2", "the focus stays where it was"
        assert heading is not None
        assert heading.evaluate("e => e.isConnected"), "the page was changed, not loaded again"
        # The driver dies in the middle of a batch.
        scene.plan()
        scenes.disown(scene)
        expect(page.locator(".title .pill")).to_have_text("down")
        expect(page.locator(".reasons")).to_contain_text("gone without a word")
        expect(overview.page.locator(".card")).to_have_class(re.compile("down"))
        looking.picture("killed")
        # Another one starts, and fences it.
        scene.restart()
        scene.run(1)
        scene.catch_up()
        expect(page.locator(".title .pill")).to_have_text("healthy")
        expect(page.get_by_role("region", name="Drivers", exact=True)).to_contain_text("fenced")
        expect(page.locator("[data-key='5'] .state").first).to_have_text("complete")
        expect(overview.page.locator(".card")).to_have_class(re.compile("healthy"))
        looking.picture("recovered")
