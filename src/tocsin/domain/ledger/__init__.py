"""The ledger of a job: what its schedule was, and what became of each instant that it named.

Time facts tile the job's time without hole or overlap: everything up to the watermark is decided, once and for ever; what
lies between the watermark and now is decided by the definitions that were in force then, which the ledger holds as
*regimes*. So an edit fires nothing of the past, a resume releases no backlog, a clock that steps back re-opens nothing.

Implements ojs-cron §7.3 (CRON-25: at most one catch-up occurrence) and §8.5; cloacina's catch-up policies.

    state, evolving        what holds, and how each fact changes it
    instants               what its schedules name
    defining, elapsing     what is decided: on the definition, and on time
"""

from .definitions import JobNotFound, define, delete, pause, resume
from .instants import MAX_INSTANTS_PER_DECISION, PUNCTUALITY, decide_instants, next_fire_time, next_instant
from .state import KnownDefinition, Ledger, Regime, Timetable, evolve, fold, initial, missing_fact, without_definitions

__all__ = [
    "MAX_INSTANTS_PER_DECISION",
    "PUNCTUALITY",
    "JobNotFound",
    "KnownDefinition",
    "Ledger",
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
