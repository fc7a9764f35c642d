"""Counting rows, for who tests a sink; the demo counts with the same."""

from holdfast.core.audit import AuditReport as AuditReport
from holdfast.core.audit import audit as audit
