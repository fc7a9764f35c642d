"""The contract suite: what every sink must do, as checks a sink author runs in their own tests, without Spark.

```python
def test_contract(tmp_path):
    exercise_sink(lambda: RenamedFiles(tmp_path), lambda: read_json_files(tmp_path))
```
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.testing.bench import GUARANTEES, SCHEMA, Bench, NotApplicable, Row, default_row
from holdfast.testing.checks import CHECKS

_CITED = re.compile(r"\b(?:[A-Z]\d+|rule \d+)\b")


class ContractError(AssertionError):
    """A sink breaks the contract; `failures` has what is wrong, by check."""

    def __init__(self, sink: str, failures: Mapping[str, str], checked: int) -> None:
        self.failures = dict(failures)
        lines = [f"sink {sink!r} breaks the contract in {len(failures)} of {checked} checks:"]
        lines += [f"- {name} ({', '.join(contracts(name))}): {text}" for name, text in failures.items()]
        super().__init__("\n".join(lines))


@dataclass(frozen=True)
class ContractReport:
    """What was checked."""

    sink: str
    guarantee: str
    passed: tuple[str, ...]
    #: check -> why it has nothing to say about this sink
    skipped: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.sink}: {self.guarantee}, {len(self.passed)} checks passed, {len(self.skipped)} do not apply"


def contracts(check: str) -> list[str]:
    """The contracts a check is about, as its docstring cites them."""
    return _CITED.findall(CHECKS[check].__doc__ or "")


def exercise_sink(
    make_sink: Callable[[], TwoPhaseCommitSink],
    read_rows: Callable[[], Iterable[Mapping[str, Any]]],
    *,
    guarantee: str = "exactly-once",
    schema: pa.Schema | None = None,
    make_row: Callable[[int], Row] | None = None,
    key: str = "id",
    leftovers: Callable[[], Iterable[Hashable]] | None = None,
    reset: Callable[[], None] | None = None,
    only: Collection[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ContractReport:
    """Drive a sink through every check, and raise ContractError, an AssertionError, with all that failed.

    `make_sink` makes a new sink with the same options, as a restart does. `read_rows` gives what an honest reader of
    the endpoint sees now (read-committed, where there is such a thing), one dict a row.

    `guarantee` is what the sink claims. `exactly-once`: nothing is visible before its decision, every row comes once.
    `effectively-once`: rows may be visible early, and after a replay each is there once. `at-least-once`: nothing is
    lost.

    Rows have the columns `id` (unique, whole number), `name` (text or null) and `amount` (double or null). A sink with
    other needs gives `schema`, `make_row(n)`, which returns the n-th row, and `key`, a column that is unique.
    `leftovers` lists whatever is open, prepared or hidden at the endpoint now; with it, forgotten work is found too.
    `reset` is called before each check. `only` names the checks to run. `progress` is told the name of each check
    before it runs.
    """
    if guarantee not in GUARANTEES:
        raise ConfigError(f"guarantee must be one of {', '.join(GUARANTEES)}, not {guarantee!r}")
    if (schema is None) != (make_row is None):
        raise ConfigError("schema and make_row go together: one says which columns there are, the other fills them")
    unknown = sorted(set(only or ()) - set(CHECKS))
    if unknown:
        raise ConfigError(f"only: there is no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    numbers = itertools.count()
    passed: list[str] = []
    skipped: dict[str, str] = {}
    failures: dict[str, str] = {}
    first: Exception | None = None
    for name in CHECKS if only is None else only:
        if progress is not None:
            progress(name)
        if reset is not None:
            reset()
        bench = Bench(
            make_sink, read_rows, guarantee, schema or SCHEMA, make_row or default_row, key, leftovers, name, numbers
        )
        try:
            CHECKS[name](bench)
            passed.append(name)
        except NotApplicable as reason:
            skipped[name] = str(reason)
        except Exception as error:  # noqa: BLE001  whatever a sink raises is a finding
            first = first or error
            failures[name] = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        finally:
            bench.close()
    sink = make_sink().name
    if failures:
        raise ContractError(sink, failures, len(passed) + len(failures)) from first
    return ContractReport(sink, guarantee, tuple(passed), skipped)
