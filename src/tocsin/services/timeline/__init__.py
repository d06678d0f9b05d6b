"""The time of a job: every instant of its schedule with its decision.

    TimelineReader (reads) ──Past──────────────────▶ marks_of   one mark for each instant, if they are few
                           ──counts, passed spans──▶ Buckets    counts by time and decision, if they are many

The decision on an instant is the verdict of `domain.replay`. Of an instant that fired, it is the status of its execution.
"""

from .marks import *
from .reader import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
