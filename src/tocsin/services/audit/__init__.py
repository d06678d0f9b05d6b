"""The proof that anyone can run: facts in, violations of the promises out.

    recorded facts ──▶ Auditor ──▶ checks (time, executions, requests, locks, public) ──▶ Report

The checks read no clock, no log and no database, so that they judge a live stream, a file and an archive alike; `comparing`
alone asks read models what they show. They share the domain's events, names and calendar, and say everything else a second
time.

| invariant | checked by |
|---|---|
| I1 an instant has one execution | `requests` |
| I2 time is tiled; each `due` becomes an execution | `time` over `timeline`; `requests` |
| I3 nothing without what asks for it | `requests`, `executions` over `life` |
| I4 no fact twice | `executions` over `life` |
| I5 locks | `locks` |
| I6 the graph and the end, I7 retries and dead letters | `executions` over `life` |
| I8 the read models | `read_models`, `comparing` |
"""

from .auditor import Auditor, audit
from .projection_reader import ProjectionReader
from .report import INVARIANTS, PATIENCE, PUBLIC, Comparison, Debt, Proof, Report, Violation

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
