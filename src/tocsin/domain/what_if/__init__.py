"""Replays of the recorded past of jobs, with other definitions or other workers.

These are pure functions over recorded events. The schedule, the ledger, the lock and the task board decide, as in the stages.

    recorded             records of a job
    time_replay          decisions on its instants
    arrivals             executions that follow, with durations
    executions_replay    locks, slots and ends
    slots                slots of limited queues
    outcomes             outcomes of executions
    comparison           log and replay compared
"""

from .arrivals import Arrivals
from .comparison import (
    Course,
    CourseDifference,
    ListedDifferences,
    ListedInstants,
    Side,
    Waits,
    WhatIfFigures,
    WhatIfJob,
    WhatIfReport,
    compare,
    together,
)
from .executions_replay import ExecutionsReplay
from .outcomes import Outcome
from .recorded import Absence, Decision, RecordedJob, Runs
from .slots import UNLIMITED, Pause, QueueRules, Slots
from .time_replay import TimeReplay

__all__ = [
    "UNLIMITED",
    "Absence",
    "Arrivals",
    "Course",
    "CourseDifference",
    "Decision",
    "ExecutionsReplay",
    "ListedDifferences",
    "ListedInstants",
    "Outcome",
    "Pause",
    "QueueRules",
    "RecordedJob",
    "Runs",
    "Side",
    "Slots",
    "TimeReplay",
    "Waits",
    "WhatIfFigures",
    "WhatIfJob",
    "WhatIfReport",
    "compare",
    "together",
]
