"""The time of a job: every instant of its schedule with its decision.

    TimelineReader (reads) ──definitions, decisions──▶ Ledger ──▶ marks_of   one mark for each instant, if they are few
                           ──counts, passed spans───▶ Buckets                counts by time and decision, if they are many

The decision on an instant is that of `services.explain`. Of an instant that fired, it is the status of its execution.
"""

from .model import MAX_BUCKETS, Bucket, Decision, Mark, Span, Version, VersionKind, Window
from .reader import MAX_MARKS, Timeline, TimelineReader
from .revisions import Revision, no_definition, read_definition, read_revisions, revisions_of

__all__ = [
    "MAX_BUCKETS",
    "MAX_MARKS",
    "Bucket",
    "Decision",
    "Mark",
    "Revision",
    "Span",
    "Timeline",
    "TimelineReader",
    "Version",
    "VersionKind",
    "Window",
    "no_definition",
    "read_definition",
    "read_revisions",
    "revisions_of",
]
