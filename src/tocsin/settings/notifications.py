"""The settings of notifications: channels, and rules for jobs without a rule of their own."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from .section import Section


class NatsChannel(Section):
    """A channel that publishes each notification as `cron.alert.<job>`."""

    type: Literal["nats"] = "nats"


ChannelSettings: TypeAlias = Annotated[NatsChannel, Field()]
"""The settings of one channel; `type` decides on its fields. A further type makes this a union with `discriminator="type"`."""
