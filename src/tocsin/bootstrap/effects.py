"""The effects of stored decisions: inputs for streams, and signals for stages."""

import asyncio
from collections.abc import Sequence
from typing import Final

from .. import telemetry
from ..engine.causes import Effect, Notice
from ..engine.step import Send
from ..ports import Clock, InputLog, LogUnavailable, RequestRefused
from ..subjects import Stream, stream_of

PAUSE_S: Final = 0.5
"""Pause before an input is sent again."""
MAX_UNSENT: Final = 10_000
"""Inputs that wait until their streams take them; at more, the loop waits too."""

_log = telemetry.get_logger("tocsin")


class Effects:
    """The sender of the effects of one process.

    A full stream has room again after its stages have decided on its inputs. So the loop decides on while an input waits for room.
    """

    def __init__(self, inputs: InputLog, clock: Clock) -> None:
        self._inputs = inputs
        self._clock = clock
        self._unsent: dict[str, Send] = {}
        """Inputs that are not published yet, by their ids."""
        self._has_unsent = asyncio.Event()

    async def send(self, effects: Sequence[tuple[str, Effect]]) -> None:
        """Publish inputs, or keep them for later, and give signals to their stages."""
        for _, effect in effects:
            match effect:
                case Notice(take, signal):
                    if take is not None:
                        take(signal)
                case Send() if self._unsent or not await self._publish(effect):
                    self._unsent[effect.message_id] = effect
                    self._has_unsent.set()
        while len(self._unsent) > MAX_UNSENT:
            await self._clock.sleep(PAUSE_S)

    async def run(self) -> None:
        """Publish the inputs that were kept, until cancelled."""
        while True:
            await self._has_unsent.wait()
            await self._clock.sleep(PAUSE_S)
            refusing = set[Stream]()
            for send in tuple(self._unsent.values()):
                stream = stream_of(send.subject)
                if stream in refusing:
                    continue
                if await self._publish(send):
                    del self._unsent[send.message_id]
                else:
                    refusing.add(stream)
            if not self._unsent:
                self._has_unsent.clear()

    async def _publish(self, send: Send) -> bool:
        """Publish an input; False: its stream takes none now."""
        try:
            await self._inputs.publish(send.subject, send.message, message_id=send.message_id, ttl=send.ttl)
        except LogUnavailable as error:
            _log.info("input waits for JetStream", action="log-unavailable", subject=send.subject, error=str(error))
            return False
        except RequestRefused as error:
            _log.error("input refused", action="input-refused", subject=send.subject, error=str(error))
        return True
