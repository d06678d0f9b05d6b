"""What a job wants when its zone's clocks change: the rule of `ojs-cron` 5.2 by default, two deviations by wish."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from .errors import ScheduleError

Gap: TypeAlias = Literal["skip", "shift"]
Fold: TypeAlias = Literal["once", "both"]


@dataclass(frozen=True, slots=True)
class DstPolicy:
    """How wall-clock times that do not exist, or exist twice, are treated.

    Attributes:
        gap: `skip` (CRON-16): a time that does not exist does not fire, and is reported. `shift`: it fires later by as
            much as the clocks moved; where another instant of the same schedule lies there already, the two are one.
        fold: `once` (CRON-17): a time that exists twice fires at its first occurrence. `both`: schedules that step
            through the hours (a `*`, a range or a step in second, minute or hour) fire through both passes, so that
            `*/15` keeps its pace; fixed times still fire once.

    Raises:
        ScheduleError: there is no such policy.
    """

    gap: Gap = "skip"
    fold: Fold = "once"

    def __post_init__(self) -> None:
        for name, value, allowed in (("gap", self.gap, get_args(Gap)), ("fold", self.fold, get_args(Fold))):
            if value not in allowed:
                raise ScheduleError(f"dst.{name}: there is no policy {value!r}; allowed are {' and '.join(allowed)}")


SPECIFIED: Final = DstPolicy()
