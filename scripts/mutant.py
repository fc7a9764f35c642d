"""One thing switched off, for `make mutants`.

`file` is below src/holdfast and may be a pattern: what a mutant replaces is in one of the files, once. In `old` and
`new` a line break followed by a blank stands for a line break and whatever indentation is there.
"""

from __future__ import annotations

from dataclasses import dataclass

CRASH = "tests/crash/test_matrix.py::test_after_the_fault_every_row_is_delivered_once"
RULES = "tests/unit/test_kernel_rules.py"
FAILURES = "tests/crash/test_failures.py"


@dataclass(frozen=True)
class Mutant:
    """The text that is replaced, and the tests that must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    """One that the tests of the kernel's rules must notice, unless others are named."""
    return Mutant(name, file, old, new, tests or (RULES,))
