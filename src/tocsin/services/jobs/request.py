"""Asking so that the answer is known: under a name, and read back from the log."""

import asyncio
from dataclasses import dataclass
from typing import Final

from ...domain.events import Message, Recorded
from ...ports import EventLog, LogUnavailable
from ...subjects import Stream

ANSWER_PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds before each look for a message just stored: a replica that lags behind may be asked."""


@dataclass(frozen=True, slots=True)
class RequestName:
    """What a caller calls a request, so that asking again asks for nothing new.

    The log knows the name again for as long as its window is; `is_retried` says that it may have been asked before that,
    which costs a look at everything that was asked of the job.
    """

    name: str
    is_retried: bool = False


async def read_back(log: EventLog, stream: Stream, sequence: int) -> Recorded[Message]:
    """A message just stored, with the time that the log gave it.

    Raises:
        LogUnavailable: it is stored, but cannot be read back.
    """
    for pause in ANSWER_PAUSES:
        await asyncio.sleep(pause)
        stored = await log.get(stream, sequence)
        if stored is not None:
            return stored
    raise LogUnavailable(f"message {sequence} of {stream.value} is stored, but cannot be read back")
