"""The ledger of a job: its definitions and the outcome of each instant.

Time events cover the job's time without gap or overlap. Everything up to the watermark is decided once and stays
decided. Time between the watermark and now is decided by the definitions that were in force then, which the ledger
holds as *regimes*. Therefore an edit never fires instants of the past, a resume releases no backlog, and a clock that
steps back reopens nothing.

Implements ojs-cron §7.3 (CRON-25: at most one catch-up occurrence) and §8.5, and cloacina's catch-up policies.

    state            the state, and how events change it
    definitions      decisions on definitions
    instants         instants of schedules, and decisions on them
    timetables       fields that decide on time
    memory           many ledgers in little memory
    snapshot         many ledgers as bytes
"""

from .definitions import JobNotFound, complete, define, delete, pause, refuse_past, resume, was_dropped
from .instants import (
    MAX_INSTANTS_PER_DECISION,
    PUNCTUALITY,
    anchor_of,
    count_fire_times,
    decide_instants,
    is_over,
    next_fire_time,
    next_instant,
    schedule_of,
    schedule_type,
    undecided_occurrences,
)
from .state import (
    KnownDefinition,
    Ledger,
    Regime,
    evolve,
    fired_since,
    fold,
    initial,
    missing_fact,
)
from .timetables import Lookahead, Timetable

__all__ = [
    "MAX_INSTANTS_PER_DECISION",
    "PUNCTUALITY",
    "JobNotFound",
    "KnownDefinition",
    "Ledger",
    "Lookahead",
    "Regime",
    "Timetable",
    "anchor_of",
    "complete",
    "count_fire_times",
    "decide_instants",
    "define",
    "delete",
    "evolve",
    "fired_since",
    "fold",
    "initial",
    "is_over",
    "missing_fact",
    "next_fire_time",
    "next_instant",
    "pause",
    "refuse_past",
    "resume",
    "schedule_of",
    "schedule_type",
    "undecided_occurrences",
    "was_dropped",
]
