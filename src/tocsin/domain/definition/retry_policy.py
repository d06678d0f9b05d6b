"""The rules for retries, and for the recovery from lost workers."""

from typing import Final, Literal

from pydantic import Field

from .fields import Seconds, Text
from .stored_model import StoredModel

DEFAULT_MAX_DEATHS: Final = 3
"""Workers that a step of an execution may lose, unless the definition of its job says otherwise."""


class RecoveryPolicy(StoredModel):
    """The rule for tasks whose workers are lost.

    A worker is lost if it is not heard for 30 seconds. The attempt then runs again, and `retry` does not count it.
    """

    max_deaths: int = Field(default=DEFAULT_MAX_DEATHS, ge=1, le=20, strict=True)
    """The number of lost workers after which a step fails as `worker_lost`, over all attempts of an execution. With 1, a task that only
    shares its worker with the cause of the loss fails too."""


class RetryPolicy(StoredModel):
    """The rule for retries (hip-62, Retry Policy).

    `max_attempts` includes the first attempt. Delays grow until `max_delay`.
    """

    max_attempts: int = Field(default=3, ge=1, le=100, strict=True)
    """The number of attempts, the first included."""
    initial_delay: Seconds = 30.0
    """The delay before the second attempt."""
    multiplier: float = Field(default=2.0, ge=1, strict=True)
    """The factor or exponent by which delays grow; see `backoff`."""
    max_delay: Seconds = 300.0
    """The limit of the delay between two attempts."""
    jitter: float = Field(default=0.1, ge=0, le=1, strict=True)
    """The share of a delay by which it may be longer or shorter."""
    max_delay_with_jitter: bool = False
    """True: `max_delay` also limits the delay with its jitter (ojs-retry §5.3).

    In hip-62 the jitter is added after the limit.
    """
    backoff: Literal["exponential", "linear", "polynomial", "none"] = "exponential"
    """The growth of delays with the number of failures n (ojs-retry §3).

    `exponential`: `multiplier^(n-1)`. `linear`: `n`. `polynomial`: `n^multiplier`. `none`: constant.
    """
    non_retryable_errors: tuple[Text, ...] = ()
    """Types of errors that are not retried; `*` at the end covers every type with that prefix."""
