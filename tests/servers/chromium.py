"""Debian's Chromium, for tests that look at pages as people do."""

from __future__ import annotations

import os
import shutil
import subprocess


def binary() -> str:
    """Where Chromium is; Debian's package is installed if it is missing and we may."""
    found = shutil.which("chromium")
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
        if subprocess.run(install, capture_output=True).returncode:
            subprocess.run(["apt-get", "update", "-qq"], check=True, capture_output=True)
            subprocess.run(install, check=True, capture_output=True)
        found = shutil.which("chromium")
    assert found is not None, "no chromium: install Debian's package of this name"
    return found
