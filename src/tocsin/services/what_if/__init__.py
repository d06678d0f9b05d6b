"""Answers to the question what other definitions or other workers would change."""

from ...domain.what_if import WhatIfReport
from .past import PastReader
from .replays import MAX_INSTANTS, Replays, Window
from .service import MAX_DAYS, MAX_JOBS, MAX_SLOTS, Question, WhatIf

__all__ = [
    "MAX_DAYS",
    "MAX_INSTANTS",
    "MAX_JOBS",
    "MAX_SLOTS",
    "PastReader",
    "Question",
    "Replays",
    "WhatIf",
    "WhatIfReport",
    "Window",
]
