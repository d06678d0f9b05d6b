"""The proof that anyone can run: events in, violations of the promises out.

    recorded events ──▶ Auditor ──▶ checks (time, executions, requests, locks, public events) ──▶ Report

The checks read no clock, no log and no database, so that they judge a live stream, a file and an archive alike. Only
`projection_reader` queries read models. The checks share the domain's event classes, names and calendar, and implement every rule
independently of the domain.

| invariant | checked by |
|---|---|
| I1 an instant has one execution | `requests` |
| I2 time is tiled; each `due` becomes an execution | `ledger_time` over `timeline`; `requests` |
| I3 nothing without a request | `requests`, `executions` over `execution_life` |
| I4 no event twice | `executions` over `execution_life` |
| I5 locks | `locks` |
| I6 the graph and the end, I7 retries and dead letters | `executions` over `execution_life` |
| I8 the read models | `read_models`, `projection_reader` |
"""

from .auditor import Auditor, audit
from .check import INVARIANTS, PATIENCE, PUBLIC, Comparison, Debt, Proof, Report, Violation
from .read_models import ProjectionReader

__all__ = [
    "INVARIANTS",
    "PATIENCE",
    "PUBLIC",
    "Auditor",
    "Comparison",
    "Debt",
    "ProjectionReader",
    "Proof",
    "Report",
    "Violation",
    "audit",
]
