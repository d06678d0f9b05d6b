"""The ledger of a job: its definitions and the outcome of each instant.

Time events cover the job's time without gap or overlap. Everything up to the watermark is decided once and stays
decided. Time between the watermark and now is decided by the definitions that were in force then, which the ledger
holds as *regimes*. Therefore an edit never fires instants of the past, a resume releases no backlog, and a clock that
steps back reopens nothing.

Implements ojs-cron §7.3 (CRON-25: at most one catch-up occurrence) and §8.5, and cloacina's catch-up policies.

    state            the state, and how each event changes it
    definitions      decisions on the definition
    instants         the instants of the schedules, and decisions on them
    lookahead        the last calendar search of a job
"""

from .definitions import JobNotFound, define, delete, pause, resume
from .instants import MAX_INSTANTS_PER_DECISION, PUNCTUALITY, decide_instants, next_fire_time, next_instant
from .lookahead import Lookahead
from .state import KnownDefinition, Ledger, Regime, Timetable, evolve, fold, initial, missing_fact, without_definitions

__all__ = [
    "MAX_INSTANTS_PER_DECISION",
    "PUNCTUALITY",
    "JobNotFound",
    "KnownDefinition",
    "Ledger",
    "Lookahead",
    "Regime",
    "Timetable",
    "decide_instants",
    "define",
    "delete",
    "evolve",
    "fold",
    "initial",
    "missing_fact",
    "next_fire_time",
    "next_instant",
    "pause",
    "resume",
    "without_definitions",
]
