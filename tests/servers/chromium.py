"""Debian's Chromium, for tests that look at pages as people do."""

from __future__ import annotations

import shutil

from tests.servers.debian import installed


def binary() -> str:
    """Where Chromium is; Debian's package is installed if it is missing and we may."""
    return installed(lambda: shutil.which("chromium"), "chromium", "fonts-dejavu-core")
