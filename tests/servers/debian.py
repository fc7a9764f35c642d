"""Programs of Debian's packages; what is missing is installed where we may."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable


def installed(find: Callable[[], str | None], *packages: str) -> str:
    """What `find` finds, after these packages were installed if it finds nothing."""
    found = find()
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        if subprocess.run(install, capture_output=True).returncode:
            subprocess.run(["apt-get", "update", "-qq"], check=True, capture_output=True)
            subprocess.run(install, check=True, capture_output=True)
        found = find()
    assert found is not None, f"install Debian's package {packages[0]}"
    return found
