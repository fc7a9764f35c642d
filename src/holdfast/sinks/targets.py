"""The sinks of a pattern, one for each name: what they are called, and which part of a committable is whose."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.naming import MAX_ESCAPED, MAX_NAME, escape


def states_of(sink: str, state: Any) -> dict[str, Any]:
    """The sinks that a saved state is about, each with its own: the sink itself, or those of its names."""
    if isinstance(state, Mapping) and "pattern" in state and "targets" in state:
        return {target_name(sink, target): body["state"] for target, body in state["targets"].items()}
    return {sink: state}


def by_target(committables: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """By name, as each name's sink prepared them."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for committable in committables:
        for one in committable["targets"]:
            found.setdefault(one["target"], []).append(one["data"])
    return dict(sorted(found.items()))


def target_name(sink: str, target: str) -> str:
    """What the sink of one name is known by at the endpoint and in the log; one that would be too long has a digest."""
    name = f"{sink}#{target}"
    if len(name.encode()) > MAX_NAME or len(escape(name)) > MAX_ESCAPED:
        digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        name = f"{sink.encode()[:40].decode(errors='ignore')}#{digest}"
    return name
