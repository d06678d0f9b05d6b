"""Run a screener that hangs after it stored a message, before it answers: `python -m … URL FOLDER`."""

import asyncio
import sys
from pathlib import Path

from tests.security.installations import settings
from tocsin import bootstrap
from tocsin.adapters.nats.submissions import NatsScreeningChannel


async def hang(*_: object) -> None:
    """Wait in place of an answer."""
    await asyncio.Event().wait()


async def run(url: str, folder: Path) -> None:
    """Run until killed."""
    NatsScreeningChannel.answer = hang  # type: ignore[assignment, method-assign]
    async with bootstrap.connect(settings(url, folder, "screener", screened=True)) as installation:
        await bootstrap.run_stages(installation, ["screener"])


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2])))
