"""One setting for how long and how often something is tried again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import ConfigError


def test_minutes_by_default_and_every_way_to_write_a_duration() -> None:
    assert hf.Retry().seconds == 300
    assert hf.Retry(for_="90s").seconds == 90
    assert hf.Retry(for_=1.5).seconds == 1.5
    assert hf.Retry(for_=timedelta(minutes=2)).seconds == 120
    assert hf.Retry(for_=0).seconds == 0


def test_the_wait_doubles_up_to_the_longest() -> None:
    retry = hf.Retry(first_wait="100ms", longest_wait=1)
    assert [retry.wait(failures) for failures in range(1, 7)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1, 1])
    assert retry.wait(10_000) == 1, "for ever is no overflow"


@pytest.mark.parametrize("option", ["for_", "first_wait", "longest_wait"])
@pytest.mark.parametrize("value", [None, "soon", -1, "5 parsecs", float("inf"), float("nan"), True, [1]])
def test_a_wrong_duration_is_refused_by_the_options_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"retry\.{option} must be a duration such as"):
        hf.Retry(**{option: value})


@pytest.mark.parametrize("options", [{"first_wait": 0}, {"first_wait": 2, "longest_wait": 1}])
def test_waits_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """Without a wait a loop would burn a core while an endpoint is away."""
    with pytest.raises(ConfigError, match=r"retry\.first_wait must be above 0 and not above retry\.longest_wait"):
        hf.Retry(**options)
