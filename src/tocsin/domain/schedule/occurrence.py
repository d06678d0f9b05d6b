"""What a schedule names: an instant, or a wall-clock time that its zone skipped."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a schedule.

    Attributes:
        at: the instant, an aware UTC datetime.
        skipped_local: None if the schedule fires at that instant. Else the wall-clock time (naive) that does not exist,
            since the clocks skipped it; nothing fires, and `at` is that time read with the offset in force before the
            change.
    """

    at: datetime
    skipped_local: datetime | None = None
