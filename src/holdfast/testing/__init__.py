"""For sink authors: the contract suite, fault points, and the audit.

`holdfast.testing.faults` is imported by the library itself and stays free of everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.audit import AuditReport, audit
    from holdfast.testing.contract import exercise_sink

__all__ = ["AuditReport", "audit", "exercise_sink"]


def __getattr__(name: str) -> Any:
    if name == "exercise_sink":
        from holdfast.testing.contract import exercise_sink

        return exercise_sink
    if name in ("audit", "AuditReport"):
        from holdfast.testing import audit as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
