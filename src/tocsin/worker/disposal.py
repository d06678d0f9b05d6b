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


Disposal: TypeAlias = Ack | HandBack
ACK: Final = Ack()


async def settle(delivery: Delivery, disposal: Disposal) -> None:
    """Tell the queue. Raises nothing: what it did not hear is delivered again, and found answered."""
    try:
        match disposal:
            case Ack():
                await delivery.ack()
            case HandBack():
                await delivery.nak(disposal.delay)
    except Exception as error:  # noqa: BLE001 - whatever befalls the connection, the worker outlives it
        log.warning("not settled", action="not-settled", subject=delivery.subject, error=repr(error))
