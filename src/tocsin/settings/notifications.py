"""The settings of notifications: channels, and rules for jobs without a rule of their own."""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from .channels import OutsideChannel
from .fields import Token
from .section import Section

MAX_CHANNELS: Final = 50


class NatsChannel(Section):
    """A channel that publishes each notification as `cron.alert.<job>`."""

    type: Literal["nats"] = "nats"
    """The type of the channel: `nats`."""


ChannelSettings: TypeAlias = Annotated[NatsChannel | OutsideChannel, Field(discriminator="type")]
"""The settings of one channel; `type` decides on its fields."""


class Notifications(Section):
    """Notifications to people and programs about jobs."""

    channels: Annotated[dict[Token, ChannelSettings], Field(max_length=MAX_CHANNELS)] = {}  # noqa: RUF012 - pydantic copies it
    """The receivers of notifications by name, at most 50: each has a `type`, which decides on its other settings."""
