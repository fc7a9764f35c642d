"""A dashboard that serves, and a browser that looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from holdfast.dashboard.places import Places
from holdfast.dashboard.serve import beside
from holdfast.dashboard.web import Site
from tests.servers.chromium import binary
from tests.unit import scenes
from tests.unit.scenes import in_memory

#: kept for people to look at; git ignores it
PICTURES = Path(__file__).parents[2] / "artifacts" / "dashboard"
#: milliseconds: no proof of speed, the machine may be busy
PATIENCE = 60_000


PAGES = {
    "overview": "/",
    "pipeline": "/p/orders",
    "lagging": "/p/invoices",
    "crashed": "/p/payments",
    "stuck": "/p/ledger",
    "checkpoints": "/p/orders/checkpoints",
    "checkpoint": "/p/orders/checkpoints/69",
    "summary": "/p/orders/summary",
    "configuration": "/p/orders/configuration",
    "transactions": "/p/orders/transactions",
}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        found = playwright.chromium.launch(executable_path=binary(), args=arguments)
        yield found
        found.close()


class Looking:
    """One browser window, and all that its pages complained about."""

    def __init__(self, context: BrowserContext) -> None:
        context.set_default_timeout(PATIENCE)
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda r: None if "//127.0.0.1:" in r.url else self.foreign.append(r.url))

    def _said(self, message: ConsoleMessage) -> None:
        # A page that outlives its server is told so by the browser.
        if message.type in ("error", "warning") and "net::ERR_" not in message.text:
            self.complaints.append(message.text)

    def picture(self, name: str, *, whole: bool = True) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=whole)


@pytest.fixture
def look(browser: Browser) -> Iterator[Callable[..., Looking]]:
    """Opens a window; in the end nothing may have complained, and nothing may have been asked of another host."""
    opened: list[tuple[BrowserContext, Looking]] = []

    def open_(**options: Any) -> Looking:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        opened.append((context, Looking(context)))
        return opened[-1][1]

    yield open_
    for context, looking in opened:
        context.close()
        assert looking.complaints == []
        assert looking.foreign == []


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with in_memory() as made:
        yield made


class Serving:
    """A dashboard in a thread."""

    def __init__(self, *paths: Path | str, **options: Any) -> None:
        self.site = Site(Places([str(path) for path in paths]), **{"every": 0.2, **options})
        self._beside = beside(self.site)
        self.url = ""

    def __enter__(self) -> Serving:
        self.url = self._beside.__enter__().rstrip("/")
        return self

    def __exit__(self, *error: Any) -> None:
        self._beside.__exit__(*error)


@pytest.fixture(scope="module")
def all_kinds(folder: Path) -> Iterator[Serving]:
    """One pipeline of each kind."""
    for make in (scenes.lagging, scenes.stopped, scenes.crashed, scenes.stuck):
        make(folder / "all")
    scenes.healthy(folder / "all", count=70)
    with Serving(folder / "all", allow_actions=True) as serving:
        yield serving


def serious(looking: Looking, name: str) -> None:
    """No finding of axe that it calls serious or critical."""
    # axe is put in by the test itself, and our policy is not to be loosened for it: evaluate is not bound by it.
    found = Axe().run(looking.page).response["violations"]
    bad = [(v["id"], v["impact"], [n["html"][:160] for n in v["nodes"]][:3]) for v in found]
    assert [v for v in bad if v[1] in ("serious", "critical")] == [], name
