"""The history, recorded anew."""

import asyncio

from ..stages.recorder import RECORDED, Recorder
from .installation import Installation


async def rebuild_history(installation: Installation) -> int:
    """Forget the history and record it anew from the first fact on, beside any recorder that runs; its executions.

    Readers see it grow meanwhile.

    Raises:
        Unreachable: the installation was never initialized.
        HistoryUnavailable: the database cannot be used.
        LogUnavailable: the log did not answer.
    """
    async with installation.history() as history:
        await history.forget()
        log, clock, past = installation.log, installation.clock, installation.stored
        recorders = [Recorder(log, history, clock, stream, gathering=0, past=past) for stream in RECORDED]
        await asyncio.gather(*(one.catch_up() for one in recorders))
        return await history.count()
