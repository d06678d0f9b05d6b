"""The registry: registers, updates, pauses, resumes, deletes and triggers jobs.

The command line and the HTTP API use it. Every change is a fact that the domain decides on and the ledger's guard accepts.
Reads use the ledger and not its projection, so a change is visible at once, even if no stage is running.

Implements hip-62 (API Endpoints: `/v1/jobs`; Audit Trail) and ojs-cron §8 (CRON-26 to CRON-28).
"""

from .dependencies import *
from .job import *
from .job_filter import *
from .registry import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
