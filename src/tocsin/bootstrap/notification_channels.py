"""The channels of notifications that the settings name."""

from collections.abc import Mapping

from .. import __version__
from ..adapters.nats.alerts import NatsAlertChannel
from ..adapters.notifications.factory import open_channel
from ..ports import NotificationChannel
from ..settings.notifications import ChannelSettings, NatsChannel
from .installation import Installation


def channels_of(installation: Installation) -> Mapping[str, NotificationChannel]:
    """Return every channel by its name.

    Raises:
        ExtraNotInstalled: a library of a channel is in an extra, which is not installed.
        SettingsError: a file of a channel cannot be read, or a URL cannot be used.
    """
    channels = installation.settings.notifications.channels
    return {name: channel_of(installation, name, settings) for name, settings in channels.items()}


def channel_of(installation: Installation, name: str, settings: ChannelSettings) -> NotificationChannel:
    """Return a channel; `name`: as the settings call it.

    Raises:
        ExtraNotInstalled: its library is in an extra, which is not installed.
        SettingsError: a file cannot be read, or a URL cannot be used.
    """
    if isinstance(settings, NatsChannel):
        return NatsAlertChannel(installation.connection, installation.names)
    return open_channel(name, settings, installation.clock, __version__)
