"""The registry: registers, updates, pauses, resumes, deletes and triggers jobs.

The command line and the HTTP API use it. Every change is a fact that the domain decides on and the ledger's guard accepts.
Reads use the ledger and not its projection, so a change is visible at once, even if no stage is running.

Implements hip-62 (API Endpoints: `/v1/jobs`; Audit Trail) and ojs-cron §8 (CRON-26 to CRON-28).
"""

from .dependencies import MaySee
from .job import Change, Check, Job, JobStatus, Plan, Verb, plan_of
from .job_filter import JobFilter, LastResult, RunCounters, read_runs, with_result
from .registry import TRIES, Registry, RequestName, each, read_back

__all__ = [
    "TRIES",
    "Change",
    "Check",
    "Job",
    "JobFilter",
    "JobStatus",
    "LastResult",
    "MaySee",
    "Plan",
    "Registry",
    "RequestName",
    "RunCounters",
    "Verb",
    "each",
    "plan_of",
    "read_back",
    "read_runs",
    "with_result",
]
