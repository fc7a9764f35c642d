"""Schemathesis reads the API's own description and tries to break it: every answer is as described."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from holdfast.dashboard.places import Places
from holdfast.dashboard.web import Site
from tests.unit import scenes

URL = "http://localhost:8787"
_WORDS: list[str] = []


@pytest.fixture(scope="module")
def described() -> Iterator[Any]:
    """A dashboard over a healthy and a stuck pipeline, with actions, as its own document describes it."""
    with scenes.in_memory() as folder:
        scenes.healthy(folder / "all", count=4)
        scenes.stuck(folder / "all")
        site = Site(Places([str(folder / "all")], savepoints=str(folder / "saved")), allow_actions=True)
        assert site.actions is not None
        _WORDS[:] = [site.actions.word]
        yield schemathesis.openapi.from_asgi("/api/openapi.json", site.app(), headers={"Host": "localhost:8787"})


#: the stream of events never ends
schema = schemathesis.pytest.from_fixture("described").exclude(path="/api/events")


@schema.parametrize()
@settings(
    max_examples=15,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_whatever_the_description_allows_or_not_is_answered_as_described(case: schemathesis.Case) -> None:
    headers = {"Host": "localhost:8787", "Origin": URL, "Authorization": f"Bearer {_WORDS[0]}"}
    case.call_and_validate(headers=headers)
