"""What becomes of a delivery: decided as a value in one place, applied in another."""

from dataclasses import dataclass
from typing import Final, TypeAlias

from ..ports import Delivery
from .logger import log


@dataclass(frozen=True, slots=True)
class Ack:
    """It is dealt with, for good."""


@dataclass(frozen=True, slots=True)
class HandBack:
    """It comes again, to any worker of the queue, after `delay` seconds."""

    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Leave:
    """It is somebody else's: nothing is said, for the queue takes any word on it for that of its holder.

    Should the holder be dead, the queue delivers it again, under a number that grows until it may be claimed.
    """


Disposal: TypeAlias = Ack | HandBack | Leave
ACK: Final = Ack()
LEAVE: Final = Leave()


async def settle(delivery: Delivery, disposal: Disposal) -> None:
    """Tell the queue. Raises nothing: what it did not hear is delivered again, and found answered."""
    try:
        match disposal:
            case Ack():
                await delivery.ack()
            case HandBack():
                await delivery.nak(disposal.delay)
            case Leave():
                pass
    except Exception as error:  # noqa: BLE001 - whatever befalls the connection, the worker outlives it
        log.warning("not settled", action="not-settled", subject=delivery.subject, error=repr(error))
