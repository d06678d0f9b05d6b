"""The time of a job: every instant of its schedule with its decision.

    TimelineReader (reads) ──definitions, decisions──▶ Ledger ──▶ marks_of   one mark for each instant, if they are few
                           ──counts, passed spans───▶ Buckets                counts by time and decision, if they are many

The decision on an instant is that of `services.explain`. Of an instant that fired, it is the status of its execution.
"""

from .model import *
from .reader import *
from .regimes import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
