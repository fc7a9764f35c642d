"""PostgreSQL: rows by binary COPY, committed by a ledger row or by two-phase commit."""
