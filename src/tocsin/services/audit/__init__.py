"""The audit: recomputes every decision from the events, and reports violations of the guarantees.

    recorded events ──▶ Auditor ──▶ checks (time, executions, requests, locks, agents, public events) ──▶ Report

The checks read no clock, no log and no database, so that they judge a live stream, a file and an archive alike. Only
`ProjectionReader` queries read models. The checks share the domain's event classes and names, and implement every rule independently
of the domain, the instants of schedules included (`enumerator`).

| invariant | checked by |
|---|---|
| I1 an instant has one execution | `requests` |
| I2 time is tiled; each `due` becomes an execution | `ledger_time`, `requests` |
| I3 nothing without a request | `requests`, `executions` over `execution_life` |
| I4 no event twice | `executions` over `execution_life` |
| I5 locks | `coordination` |
| I6 the graph and the end, I7 retries and dead letters | `executions` over `execution_life` |
| I8 the read models | `read_models` |
| I9 nothing from outside, nothing removed | `commits` |
"""

from .auditor import *
from .check import *
from .read_models import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
