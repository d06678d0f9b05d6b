"""The reason why a job ran, or did not.

    ExplainReader (reads the log) ──definitions, decisions, leadership──▶ judge ──▶ Answer ──execution──▶ Outcome

`judge` is pure: the same events give the same answer everywhere. `Moment` is the state of everything as of a moment.
"""

from .evidence import Answer, BackfilledRun, Evidence, Gap, Outcome, Verdict, outcome_of, triggers_of
from .fold_until import Moment
from .judgement import default_instant, judge, latest
from .reader import ExplainReader

__all__ = [
    "Answer",
    "BackfilledRun",
    "Evidence",
    "ExplainReader",
    "Gap",
    "Moment",
    "Outcome",
    "Verdict",
    "default_instant",
    "judge",
    "latest",
    "outcome_of",
    "triggers_of",
]
