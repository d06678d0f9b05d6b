"""Explain why a job ran at an instant, or why it did not.

    ExplainReader (reads the log) ──definitions, decisions, leadership──▶ judge ──▶ Answer ──execution──▶ Outcome

`judge` is pure: the same facts give the same answer. `Moment` is the state of the whole installation at an instant.
"""

from .answer import Answer, Gap, Outcome, Verdict, outcome_of
from .fold_until import Moment
from .judgement import Evidence, judge, latest
from .reader import ExplainReader

__all__ = [
    "Answer",
    "Evidence",
    "ExplainReader",
    "Gap",
    "Moment",
    "Outcome",
    "Verdict",
    "judge",
    "latest",
    "outcome_of",
]
