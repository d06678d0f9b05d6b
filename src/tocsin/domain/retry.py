"""Retry policy: the delay before the next attempt (hip-62, Retry Policy)."""

from .definition import RetryPolicy
from .events import Failure


def delay(policy: RetryPolicy, attempt: int, draw: float) -> float:
    """Return the seconds between the failure of `attempt` (counted from 1) and the next attempt.

    The delay is `min(initial_delay * growth, max_delay) * (1 + jitter * draw)` with `draw` in [-1, 1). For hip-62's
    exponential backoff, `growth` is `multiplier^(attempt-1)`. If `max_delay_with_jitter` is set, `max_delay` also
    limits the delay with its jitter (ojs-retry §5.3).
    """
    try:
        grown = policy.initial_delay * _growth(policy, attempt)
    except OverflowError:
        grown = policy.max_delay
    drawn = min(grown, policy.max_delay) * (1 + policy.jitter * draw)
    return min(drawn, policy.max_delay) if policy.max_delay_with_jitter else drawn


def delay_after(error: Failure, policy: RetryPolicy, attempt: int, draw: float) -> float:
    """Return the seconds between a failure and the next attempt.

    They are those of the policy, or more if the failure names more. `max_delay` limits what a failure names, because it may come
    from a server of strangers.
    """
    return max(delay(policy, attempt, draw), min(error.retry_after or 0.0, policy.max_delay))


def _growth(policy: RetryPolicy, attempt: int) -> float:
    match policy.backoff:
        case "exponential":
            return policy.multiplier ** (attempt - 1)
        case "linear":
            return float(attempt)
        case "polynomial":
            return float(attempt**policy.multiplier)
        case "none":
            return 1.0


def is_retryable(policy: RetryPolicy, error: Failure) -> bool:
    """Return whether an error may be retried.

    A pattern that ends with `*` covers every error type that starts with the rest of the pattern.
    """
    return error.retryable and not any(
        error.type.startswith(pattern[:-1]) if pattern.endswith("*") else error.type == pattern
        for pattern in policy.non_retryable_errors
    )
