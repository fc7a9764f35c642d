"""Debian's Chromium, for tests that look at pages as people do."""

from __future__ import annotations

from tests.servers.debian import program


def binary() -> str:
    """Where Chromium is."""
    return program("chromium", "chromium", "fonts-dejavu-core")
