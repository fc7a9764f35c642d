"""The contract suite: what every sink must do, as checks a sink author runs in their own tests, without Spark.

```python
def test_contract(tmp_path):
    exercise_sink(lambda: RenamedFiles(tmp_path), lambda: read_json_files(tmp_path))
```
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.testing.checks import CHECKS
from holdfast.testing.context import GUARANTEES, SCHEMA, ArmedFault, CheckContext, NotApplicable, Row, default_row

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
    #: check -> which fault it armed that did not happen: what it was to show, it has not shown
    not_exercised: Mapping[str, str] = field(default_factory=dict)
    #: every fault that was armed, in order
    faults: tuple[ArmedFault, ...] = ()

    @property
    def not_fired(self) -> dict[str, str]:
        """{`point=mode`: why it did not happen}, of the faults that happened in no check."""
        fired = {fault.fault for fault in self.faults if fault.fired}
        missing = [fault for fault in self.faults if fault.fault not in fired]
        return {fault.fault: fault.reason or f"it should have happened in {fault.check}" for fault in missing}

    def __str__(self) -> str:
        text = f"{self.sink}: {self.guarantee}, {len(self.passed)} checks passed, {len(self.skipped)} do not apply"
        if self.not_exercised:
            text += f", {len(self.not_exercised)} not exercised ({', '.join(self.not_exercised)})"
        if self.faults:
            kinds = {fault.fault for fault in self.faults}
            text += f"; {len(kinds) - len(self.not_fired)} of {len(kinds)} faults fired"
        lines = [f"- {fault} did not fire: {why}" for fault, why in self.not_fired.items()]
        return "\n".join([text, *lines])


def _not_exercised(faults: Sequence[ArmedFault]) -> str:
    """Why a check that armed these has shown nothing: one that applies did not fire, or none did."""
    missing = [fault for fault in faults if not fault.fired and not fault.reason]
    if not missing and faults and not any(fault.fired for fault in faults):
        missing = list(faults)
    return "; ".join(f"{fault.fault} did not fire" + (f": {fault.reason}" * bool(fault.reason)) for fault in missing)


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
    unacceptable: Callable[[], Iterable[pa.RecordBatch]] | None = None,
    changed: Callable[[], TwoPhaseCommitSink] | None = None,
    drop_prepared: Callable[[], None] | None = None,
    ledger: bool = False,
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

    For what happens after the decision: `unacceptable` gives record batches, each with a row that the endpoint could
    never take. `changed` makes the sink, of the same name, with other options. `drop_prepared` makes the endpoint drop
    all that is prepared. `ledger=True` says that the sink notices an endpoint that was restored or made anew; without
    it, that is checked only if the sink does. A check that arms a fault which then does not happen is not among
    `passed`, but in the report's `not_exercised`.
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
    not_exercised: dict[str, str] = {}
    faults: list[ArmedFault] = []
    first: Exception | None = None
    for name in CHECKS if only is None else only:
        if progress is not None:
            progress(name)
        if reset is not None:
            reset()
        context = CheckContext(
            make_sink, read_rows, guarantee, schema or SCHEMA, make_row or default_row, key, leftovers, name, numbers,
            unacceptable, changed, drop_prepared, ledger, faults=[],
        )  # fmt: skip
        try:
            CHECKS[name](context)
            missing = _not_exercised(context.faults)
            if missing:
                not_exercised[name] = missing
            else:
                passed.append(name)
        except NotApplicable as reason:
            skipped[name] = str(reason)
        except Exception as error:  # noqa: BLE001  whatever a sink raises is a finding
            first = first or error
            failures[name] = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        finally:
            faults += context.faults
            context.close()
    sink = make_sink().name
    if failures:
        raise ContractError(sink, failures, len(passed) + len(failures)) from first
    return ContractReport(sink, guarantee, tuple(passed), skipped, not_exercised, tuple(faults))
