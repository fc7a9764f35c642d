"""For sink authors: the contract suite, fault points, and the audit.

`holdfast.testing.faults` is imported by the library itself, so this stays light: the contract suite loads when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# At once, and before anything else imports the module of the same name: the package's `audit` is the function.
from holdfast.testing.audit import AuditReport, audit

if TYPE_CHECKING:
    from holdfast.testing.contract import ContractError, ContractReport, exercise_sink

__all__ = ["AuditReport", "ContractError", "ContractReport", "audit", "exercise_sink"]


def __getattr__(name: str) -> Any:
    if name in ("ContractError", "ContractReport", "exercise_sink"):
        from holdfast.testing import contract

        return getattr(contract, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
