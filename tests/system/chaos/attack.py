"""The attack: all attackers of an installation that has accounts, and what is wrong after it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.stored_events import StoredEvents
from tests.system.chaos.api_viewers import ApiViewers
from tests.system.chaos.attackers import Attackers
from tests.system.chaos.hostile_agents import HostileAgents
from tests.system.chaos.load import Load
from tests.system.chaos.outsiders import Outsiders
from tests.system.processes import Site


class Attack:
    """Programs outside, a worker's account and viewers of the API, at the same time."""

    def __init__(self, tocsin: Site, load: Load, folder: Path, viewers: ApiViewers) -> None:
        installation, replicas = tocsin.installation, tocsin.settings.replicas or 1
        self._attackers = Attackers(tocsin.settings.nats.url)
        self._outsiders = Outsiders(lambda: load.triggers, replicas=replicas)
        self._viewers = viewers
        self._outsiders.join(self._attackers, folder)
        HostileAgents(installation.log, installation.names, replicas=replicas).join(self._attackers)
        viewers.join(self._attackers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Attack within the block."""
        async with self._attackers.attacking():
            yield

    async def wrong(self, everything: StoredEvents) -> list[str]:
        """Return what the attack did, and attackers that did nothing."""
        return [*self._attackers.wrong(), *self._outsiders.wrong(everything), *await self._viewers.wrong()]

    def figures(self) -> dict[str, Any]:
        """Return the attacks by kind."""
        accepted = len(self._outsiders.accepted)
        return {**self._attackers.figures(), "triggers of outsiders accepted": accepted}
