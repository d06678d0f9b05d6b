"""The ledger of a job: its definitions and the outcome of each instant.

Time events cover the job's time without gap or overlap. Everything up to the watermark is decided once and stays
decided. Time between the watermark and now is decided by the definitions that were in force then, which the ledger
holds as *regimes*. Therefore an edit never fires instants of the past, a resume releases no backlog, and a clock that
steps back reopens nothing.

Implements ojs-cron §7.3 (CRON-25: at most one catch-up occurrence) and §8.5, and cloacina's catch-up policies.

    state            the state, and how events change it
    definitions      decisions on definitions
    instants         instants of schedules, and decisions on them
"""

from .definitions import *
from .instants import *
from .state import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
