"""The screen of `tocsin top` in a test: its text, and its installation."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from textual.pilot import Pilot

from tocsin.cli.runtime.session import Session
from tocsin.cli.top.operator_thread import OperatorThread, operator_thread
from tocsin.cli.top.screen import TopApp
from tocsin.settings import Settings

INTERVAL_S: Final = 0.5
POLL_S: Final = 0.05
DEADLINE_S: Final = 30.0
SIZE: Final = (80, 24)


class Screen:
    """The screen, and the keys that a user presses."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self._pilot = pilot
        self.app = pilot.app

    @property
    def text(self) -> str:
        """The text of the terminal."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def until(self, *texts: str) -> str:
        """Wait until the terminal shows some texts."""
        return await self.until_that(lambda text: all(wanted in text for wanted in texts))

    async def until_that(self, holds: Callable[[str], bool]) -> str:
        """Wait until a condition of the text holds, and return the text."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not holds(text := self.text):
                    await self._pilot.pause(POLL_S)
                return text
        except TimeoutError:
            raise AssertionError(self.text) from None


def session_for(settings: Settings) -> Session:
    """A call of the program in an installation."""
    names = ("root", "public_prefix", "trigger_prefix", "mq_prefix", "data_dir")
    options: dict[tuple[str, ...], object] = {(name,): getattr(settings, name) for name in names}
    return Session(options=options | {("nats", "url"): settings.nats.url})


@asynccontextmanager
async def screen_of(threaded: OperatorThread) -> AsyncIterator[Screen]:
    """The screen of an operator, in a terminal of 80 columns."""
    app = TopApp(threaded, INTERVAL_S)
    async with app.run_test(size=SIZE) as pilot:
        yield Screen(pilot)


@asynccontextmanager
async def screen_for(session: Session) -> AsyncIterator[Screen]:
    """The screen of a session."""
    async with operator_thread(session) as threaded, screen_of(threaded) as screen:
        yield screen
