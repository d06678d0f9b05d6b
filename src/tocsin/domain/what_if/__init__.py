"""Replays of the recorded past of jobs, with other definitions or other workers.

These are pure functions over recorded events. The schedule, the ledger, the lock and the task board decide, as in the stages.

    runs                 recorded executions of a job, and their outcomes
    time_replay          decisions on its instants
    arrivals             executions that follow, with durations
    executions_replay    locks, slots and ends
    comparison           log and replay compared
"""

from .arrivals import *
from .comparison import *
from .executions_replay import *
from .runs import *
from .time_replay import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
