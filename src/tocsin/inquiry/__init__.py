"""Why did my job run, or not? The decision on one instant, with the facts that led to it.

    Asking (reads the log) ──definitions, decisions, leadership──▶ judge ──▶ Answer ──execution──▶ Outcome

`judge` is pure: the same facts give the same answer, whoever shows it. `Moment` is the state of everything as of a moment.
"""

from .answer import Answer, Gap, Outcome, Verdict
from .asking import Asking
from .judging import Evidence, judge, latest
from .outcome import outcome_of
from .replaying import Moment

__all__ = ["Answer", "Asking", "Evidence", "Gap", "Moment", "Outcome", "Verdict", "judge", "latest", "outcome_of"]
