"""docs/quickstart.md as a newcomer does it: every file and command of the page, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.core import faults
from tests.unit.test_docs import DOCS

PAGE = (DOCS / "quickstart.md").read_text()
#: A block of the page: the file it is to be saved as, its language, its text.
BLOCKS = re.findall(r"^(?:<!-- file: (\S+) -->\n)?```(\w+)\n(.*?)^```$", PAGE, re.S | re.M)


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    """The one command that is meant to die dies; `status` is unhappy after it, and content at the end (R7)."""
    tools = Path(sys.executable).parent
    said: list[tuple[str, int, str]] = []
    for name, language, text in BLOCKS:
        if language == "python":
            (tmp_path / name).write_text(text)
            continue
        for line in text.splitlines():
            if line.startswith("pip install"):
                continue  # this environment has it; `make dist-check` installs into an empty one
            environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
            done = subprocess.run(
                line,
                cwd=tmp_path,
                env=environment,
                shell=True,
                capture_output=True,
                text=True,
                check=False,
                timeout=240,
            )
            said.append((line, done.returncode, done.stdout + done.stderr))
    codes = {line: [code for other, code, _ in said if other == line] for line, *_ in said}
    killed = next(line for line in codes if line.startswith(f"{faults.VARIABLE}="))
    assert codes.pop(killed) in ([-signal.SIGKILL], [128 + signal.SIGKILL]), said
    first, second = codes.pop("holdfast status data/checkpoints/orders")
    assert first in (1, 2) and second == 0, said
    assert {code for found in codes.values() for code in found} == {0}, said
    counts = [text.strip() for line, _, text in said if line == "python count.py"]
    assert counts == ["1000 1000", "2000 2000"]
    assert all(f"`{count}`" in PAGE for count in counts)
