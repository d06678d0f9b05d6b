"""The rate limit of a job (ojs-rate-limiting §6): what this server keeps of it."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field

from ....domain import duration
from ....domain.events import StartRate

_Period: TypeAlias = Annotated[float, BeforeValidator(duration.parse), Field(ge=0.001, le=31_536_000)]
_Limit: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
_WINDOW: Final = "must be an object with `limit`, an integer from 1 to 1,000,000, and `period`, an ISO 8601 duration of at most a year"

REQUIREMENTS: Final[Mapping[str, str]] = {
    "key": "must be at most 200 letters, digits and `._:-`, the first a letter or a digit",
    "max_per_second": "must be an integer from 1 to 1,000,000",
    "rate": _WINDOW,
    "throttle": _WINDOW,
    "on_limit": "must be `wait`, which is the only action that is supported",
}
"""Field -> what would be right."""
ONE: Final = "must have one of `rate`, `throttle` and `max_per_second`"


class _Window(BaseModel, strict=True, extra="forbid"):
    limit: _Limit
    period: _Period


class RatePolicy(BaseModel, strict=True, extra="forbid"):
    """A policy. It has no other fields."""

    key: str | None = Field(default=None, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._:-]*$", max_length=200)
    max_per_second: _Limit | None = None
    rate: _Window | None = None
    throttle: _Window | None = None
    on_limit: Literal["wait"] = "wait"

    def start_rate(self, queue: str) -> StartRate | None:
        """Return the rate of a job; None: not exactly one limit is given."""
        key = f"queue:{queue}" if self.key is None else f"key:{self.key}"
        match self.rate, self.throttle, self.max_per_second:
            case _Window() as window, None, None:
                return StartRate(key=key, limit=window.limit, per=window.period, burst=window.limit)
            case None, _Window() as window, None:
                return StartRate(key=key, limit=window.limit, per=window.period, burst=1)
            case None, None, int() as limit:
                return StartRate(key=key, limit=limit, per=1.0, burst=limit)
            case _:
                return None


def refill_s(rate: StartRate) -> float:
    """Return the seconds in which a rate that was used up recovers.

    So long is an entry kept for each key, of which clients may invent any number.
    """
    return rate.burst * rate.per / rate.limit


def too_long(remembered: float) -> str:
    """Return the requirement of a rate that refills in more than `remembered` seconds."""
    limit = duration.short(remembered)
    return f"must refill in at most {limit}, `archive.hot_window` of the settings: a `rate` in its `period`, a `throttle` in `period` / `limit`"
