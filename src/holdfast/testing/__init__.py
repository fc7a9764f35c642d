"""For sink authors: the contract suite, fault points, and the audit.

The contract suite loads when it is used: `from holdfast.testing import faults` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core import faults

# At once, and before anything else imports the module of the same name: the package's `audit` is the function.
from holdfast.testing.audit import AuditReport, audit

if TYPE_CHECKING:
    from holdfast.testing.contract import ContractError, ContractReport, exercise_sink
    from holdfast.testing.edge_values import exercise_values

__all__ = ["AuditReport", "ContractError", "ContractReport", "audit", "exercise_sink", "exercise_values", "faults"]


def __getattr__(name: str) -> Any:
    if name in ("ContractError", "ContractReport", "exercise_sink"):
        from holdfast.testing import contract

        return getattr(contract, name)
    if name == "exercise_values":
        from holdfast.testing.edge_values import exercise_values

        return exercise_values
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
