"""The settings of notifications: channels, and rules for jobs without a rule of their own."""

from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from ..domain.definition import Notify, channel_name
from .channels import OutsideChannel
from .fields import Duration, Patience, is_http_url
from .section import Section

MAX_CHANNELS: Final = 50
ChannelName: TypeAlias = Annotated[str, AfterValidator(channel_name)]


def _page(url: str) -> str:
    if not is_http_url(url) or any(character in url for character in " ?#"):
        raise ValueError("must be a URL without a query, such as `https://tocsin.example.com`")
    return url.rstrip("/")


class NatsChannel(Section):
    """A channel that publishes each notification as `cron.alert.<job>`."""

    type: Literal["nats"] = "nats"
    """The type of the channel: `nats`."""


ChannelSettings: TypeAlias = Annotated[NatsChannel | OutsideChannel, Field(discriminator="type")]
"""The settings of one channel; `type` decides on its fields."""


class NotificationDefault(Section):
    """A rule for jobs without a `notify` of their own."""

    tags: tuple[str, ...] = ()
    """The job has one of these tags; empty: any tags or none."""
    owner: str | None = None
    """The job has this `owner`; null: any owner or none."""
    notify: Notify
    """What to notify of, and by which channels. A channel of a namespace gets nothing about jobs of others."""


class Notifications(Section):
    """Notifications to people and programs about jobs."""

    channels: Annotated[dict[ChannelName, ChannelSettings], Field(max_length=MAX_CHANNELS)] = {}  # noqa: RUF012 - pydantic copies it
    """The receivers of notifications by name, at most 50: each has a `type`, which decides on its other settings.

    A name with a dot, such as `payments.ops`, belongs to the namespace before the dot.
    The stage `notifier` is installed if there are any."""
    defaults: tuple[NotificationDefault, ...] = ()
    """Rules for jobs without a `notify` of their own. The first that fits a job holds."""
    public_url: Annotated[str, AfterValidator(_page)] | None = None
    """The URL of the pages to which messages link: `/executions/<id>` or `/jobs/<name>` is added.

    Null: the console, if `server.public_url` is set; else messages have no links."""
    group_window: Patience = 5.0
    """Time for which a notification waits for others of its channel, with which it becomes one message; `0s`: none."""
    max_age: Duration = 2_592_000.0
    """Time for which notifications are kept."""
    max_bytes: int = Field(default=67_108_864, ge=1_048_576)
    """Size of the stream of notifications, from which on it drops the oldest."""

    @model_validator(mode="after")
    def _knows_its_channels(self) -> Self:
        for number, default in enumerate(self.defaults):
            for channel in default.notify.channels:
                if channel not in self.channels:
                    known = ", ".join(f"`{name}`" for name in sorted(self.channels)) or "none"
                    raise ValueError(
                        f"`defaults[{number}].notify.channels`: there is no channel `{channel}`, but {known}"
                    )
        return self
