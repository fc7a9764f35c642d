"""Write requirements.lock: the exact versions this environment has of all that holdfast and its tests need.

Run it with the environment's own Python after installing or upgrading something there:
`.venv/bin/python scripts/lock.py`. `--check` writes nothing and fails when the lock is not what it would write.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEAD = "# Made by scripts/lock.py; `make setup` installs exactly this.\n"


def roots() -> list[Requirement]:
    """What pyproject.toml names, with every extra, and the development tools."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    tools = (ROOT / "requirements-dev.txt").read_text().splitlines()
    wanted = [Requirement(line) for line in [*project["dependencies"], *extras, *tools] if line[:1] not in ("", "#")]
    return [requirement for requirement in wanted if canonicalize_name(requirement.name) != project["name"]]


def closure(wanted: list[Requirement]) -> dict[str, str]:
    """Everything these need on this machine and no more, as {name: version}."""
    pinned: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    queue = [(requirement, extra) for requirement in wanted for extra in ("", *requirement.extras)]
    while queue:
        requirement, extra = queue.pop()
        key = canonicalize_name(requirement.name)
        if (key, extra) in seen:
            continue
        seen.add((key, extra))
        try:
            found = distribution(key)
        except PackageNotFoundError:
            raise SystemExit(f"{requirement} is not installed in {sys.prefix}: install it, then lock again") from None
        if found.version not in requirement.specifier:
            raise SystemExit(f"{requirement} is wanted, and {sys.prefix} has {found.version}: upgrade, then lock again")
        pinned[key] = found.version
        for text in found.requires or ():
            child = Requirement(text)
            if child.marker is None or child.marker.evaluate({"extra": extra}):
                queue += [(child, inner) for inner in ("", *child.extras)]
    return pinned


def main() -> int:
    """Write the lock, or check it."""
    text = HEAD + "".join(f"{name}=={version}\n" for name, version in sorted(closure(roots()).items()))
    if "--check" in sys.argv[1:]:
        if LOCK.read_text() != text:
            print("requirements.lock is not what this environment holds: run .venv/bin/python scripts/lock.py")
            return 1
        return 0
    LOCK.write_text(text)
    print(f"wrote {LOCK.name}: {text.count('==')} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
