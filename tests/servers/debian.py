"""Programs of Debian's packages that tests run."""

from __future__ import annotations

import os
import shutil
import subprocess


def program(name: str, *packages: str) -> str:
    """Where a program is; its Debian packages are installed if it is missing and we may."""
    places = f"{os.environ.get('PATH', '')}:/usr/sbin"
    found = shutil.which(name, path=places)
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *(packages or (name,))]
        if subprocess.run(install, capture_output=True).returncode:
            subprocess.run(["apt-get", "update", "-qq"], check=True, capture_output=True)
            subprocess.run(install, check=True, capture_output=True)
        found = shutil.which(name, path=places)
    assert found is not None, f"no {name}: install Debian's package {' '.join(packages or (name,))}"
    return found
