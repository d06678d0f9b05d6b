"""Who asks: registers, updates, pauses, resumes, deletes and triggers jobs, for the command line and the HTTP API alike.

Every change is a fact that the domain decides on and the ledger's guard accepts; what is read here is the ledger itself and
not its projection, so that an answer is right the moment after a change, whether or not a stage is running.

Implements hip-62 (API Endpoints: `/v1/jobs`; Audit Trail) and ojs-cron §8 (CRON-26 to CRON-28).
"""

from .job import Check, Job
from .plan import Change, Plan, Verb, plan_of
from .registry import TRIES, Registry, each
from .request import RequestName, read_back

__all__ = [
    "TRIES",
    "Change",
    "Check",
    "Job",
    "Plan",
    "Registry",
    "RequestName",
    "Verb",
    "each",
    "plan_of",
    "read_back",
]
