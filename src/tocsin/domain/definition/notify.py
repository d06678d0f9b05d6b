"""The rule of a job for its notifications."""

import re
from typing import Annotated, Any, Final, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, model_validator

from .fields import Flag, StoredModel, Timeout, is_stored

MAX_CHANNELS: Final = 10
"""The largest number of channels of a rule."""
LONGEST_S: Final = 31 * 86_400.0
"""Seconds of the longest `late_after` and `duration_over`."""
_TIME_OF_DAY: Final = re.compile("(?:[01][0-9]|2[0-3]):[0-5][0-9]")
_CHANNEL: Final = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\.)?[a-z][a-z0-9-]{0,63}")
EVENTS: Final = (
    *("on_failure", "on_recovery", "on_skip", "on_missed"),
    *("late_after", "must_complete_by", "duration_over"),
)
"""The fields that say of what to notify."""


def _channel(text: str, info: ValidationInfo) -> str:
    return text if is_stored(info) else channel_name(text)


def channel_name(text: str) -> str:
    """Return the name of a channel; raise ValueError for another form."""
    if not _CHANNEL.fullmatch(text):
        raise ValueError(
            "must be the name of a channel: 1 to 64 small letters, digits and hyphens, the first a letter; in a namespace, after its name "
            "and a dot"
        )
    return text


def _bounded(seconds: float, info: ValidationInfo) -> float:
    if seconds > LONGEST_S and not is_stored(info):
        raise ValueError("must be at most 31 days: write `31d` or less")
    return seconds


def _time_of_day(text: str, info: ValidationInfo) -> str:
    if not is_stored(info) and not _TIME_OF_DAY.fullmatch(text):
        raise ValueError('must be a time of the day from "00:00" to "23:59", in quotes')
    return text


def _listed(value: Any) -> Any:  # noqa: ANN401 - before validation
    return [value] if isinstance(value, str) else value


_Limit: TypeAlias = Annotated[Timeout, AfterValidator(_bounded)]
Channels: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_channel)], ...],
    BeforeValidator(_listed, json_schema_input_type=tuple[str, ...] | str),
]


class Notify(StoredModel):
    """The events to notify of, and the channels for it."""

    channels: Channels = ()
    """The channels, by their names in the settings (`notifications.channels`); a single one may stand alone.

    Without any, the job has no notifications, not even those that the settings give to jobs without a rule."""
    on_failure: Flag = False
    """Notify of each execution that failed, after its last retry, and once of each that lost two workers with a task of one step and goes on."""
    on_recovery: Flag = False
    """Notify of the first execution that completes after one that failed."""
    on_skip: Flag = False
    """Notify of each execution that does not run because of another execution, a full queue, a dependency, a missing shard, too few
    acknowledgements, or a daily quota of its namespace."""
    on_missed: Flag = False
    """Notify of instants that passed without an execution against the user's wish, such as during a downtime."""
    late_after: _Limit | None = None
    """Notify of each execution of which no step has started so many seconds after its scheduled time; None: of none."""
    must_complete_by: Annotated[str, AfterValidator(_time_of_day)] | None = None
    """Notify of each occurrence that is not complete at this time of the day, in the job's time zone; None: of none.

    It is the first such time after the occurrence, and written as "07:00"."""
    duration_over: _Limit | None = None
    """Notify of each execution that has not ended so many seconds after its admission; None: of none."""

    @model_validator(mode="after")
    def _says_what_and_where(self, info: ValidationInfo) -> Self:
        if is_stored(info):
            return self
        has_events = any(getattr(self, name) for name in EVENTS)
        if has_events and not self.channels:
            raise ValueError("names no channel: add `channels`, such as [ops]")
        if self.channels and not has_events:
            raise ValueError(f"names no event: set one of {', '.join(f'`{name}`' for name in EVENTS)}")
        if len(self.channels) > MAX_CHANNELS or len(set(self.channels)) != len(self.channels):
            raise ValueError(f"`channels` names each channel once, and at most {MAX_CHANNELS}")
        return self
