"""The attackers during chaos: each plays one kind of attack for the whole run, and starts again when it is cut off."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

from tests.security.installations import PASSWORD
from tocsin.ports import LogUnavailable

PAUSE_S: Final = 0.5
"""Seconds between two bursts of an attacker."""
AGAIN_S: Final = 0.5
"""Seconds until an attacker that was cut off starts again."""
TIMEOUT_S: Final = 10
CANCEL_INTERVAL_S: Final = 1.0
"""Seconds until an attacker that goes on is cancelled again."""
_CUT_OFF: Final = (NatsError, LogUnavailable, OSError, TimeoutError)

Burst: TypeAlias = Callable[[Client, "Tally"], Awaitable[int]]
"""Sends some attacks over a connection and returns their number; refusals that it sees go into the tally."""
Round: TypeAlias = Callable[["Tally"], Awaitable[int]]
"""Sends some attacks over connections of its own and returns their number."""


@dataclass
class Tally:
    """The figures of one kind of attack."""

    is_forbidden: bool = False
    """The server must refuse each of these attacks. Of others it must let some through: else they prove nothing."""
    sent: int = 0
    """Attacks that reached a server: it answered a later ping of the connection, or the attack itself."""
    refused: int = 0
    """Attacks that a server refused by an error."""
    cut_off: int = 0
    """Times that the attacker lost its connection, or got none."""
    last: str = ""
    """The last error that cut the attacker off."""

    def problem(self) -> str | None:
        """Return why the attacks prove nothing, or what they prove; None: they were sent, and answered as they should be."""
        if not self.sent:
            return f"none was sent; cut off {self.cut_off} times, last by: {self.last or 'nothing'}"
        if self.is_forbidden and self.refused < self.sent:
            return f"only {self.refused} of {self.sent} were refused"
        if not self.is_forbidden and self.refused >= self.sent:
            return f"all {self.sent} were refused"
        return None


@dataclass
class Attackers:
    """All attackers, by the kind of their attack."""

    url: str
    tallies: dict[str, Tally] = field(default_factory=dict)
    _attacks: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def add(self, kind: str, user: str, burst: Burst, *, is_forbidden: bool = False) -> None:
        """Add an attacker with a NATS user."""
        tally = self.tallies.setdefault(kind, Tally(is_forbidden))

        async def attack() -> None:
            async with _connected(self.url, user, tally) as client:
                while True:
                    number = await burst(client, tally)
                    await client.flush(TIMEOUT_S)
                    tally.sent += number
                    await asyncio.sleep(PAUSE_S)

        self._attacks.append(lambda: _insistent(attack, tally))

    def add_round(self, kind: str, play: Round) -> None:
        """Add an attacker that makes its connections itself."""
        tally = self.tallies.setdefault(kind, Tally())

        async def attack() -> None:
            while True:
                tally.sent += await play(tally)
                await asyncio.sleep(PAUSE_S)

        self._attacks.append(lambda: _insistent(attack, tally))

    @asynccontextmanager
    async def attacking(self) -> AsyncIterator[None]:
        """Attack within the block."""
        tasks = [asyncio.ensure_future(attack()) for attack in self._attacks]
        try:
            yield
        finally:
            ended = [task for task in tasks if task.done()]
            left = set(tasks)
            while left:  # nats-py swallows a cancellation that arrives while it flushes
                for task in left:
                    task.cancel()
                _, left = await asyncio.wait(left, timeout=CANCEL_INTERVAL_S)
        for task in ended:
            task.result()

    def wrong(self) -> list[str]:
        """Return the attacks that were not sent, and those that were not answered as they should be."""
        problems = {kind: tally.problem() for kind, tally in self.tallies.items()}
        return [f"attack {kind!r}: {problem}" for kind, problem in problems.items() if problem is not None]

    def figures(self) -> dict[str, Any]:
        """Return the attacks by kind."""
        names = {"sent": "attacks sent", "refused": "attacks refused by an error", "cut_off": "attackers cut off"}
        counted = {
            title: Counter({kind: getattr(tally, name) for kind, tally in self.tallies.items()})
            for name, title in names.items()
        }
        return {title: dict(+numbers) for title, numbers in counted.items()}


async def _insistent(attack: Callable[[], Awaitable[None]], tally: Tally) -> None:
    while True:
        try:
            await attack()
        except _CUT_OFF as error:
            tally.cut_off += 1
            tally.last = repr(error)
            await asyncio.sleep(AGAIN_S)


@asynccontextmanager
async def _connected(url: str, user: str, tally: Tally) -> AsyncIterator[Client]:
    """Connect as a user, without the client's own reconnects; an error of the server counts as a refusal."""

    async def note(error: Exception) -> None:
        tally.refused += "permissions violation" in str(error).lower()

    client = await nats.connect(
        url.split(","),
        user=user,
        password=PASSWORD,
        inbox_prefix=f"_INBOX_{user}",
        allow_reconnect=False,
        connect_timeout=5,
        error_cb=note,
    )
    try:
        yield client
    finally:
        await client.close()
