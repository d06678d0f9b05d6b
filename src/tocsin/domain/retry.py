"""When to try again (hip-62, Retry Policy): policy answers with a value, someone else applies it."""

from .definition import RetryPolicy
from .events import Failure


def delay(policy: RetryPolicy, attempt: int, draw: float) -> float:
    """Seconds between the failure of `attempt` (1 is the first) and the next one.

    `min(initial_delay * growth, max_delay) * (1 + jitter * draw)`, with `draw` in [-1, 1); the growth of hip-62's exponential
    backoff is `multiplier^(attempt-1)`. No longer than `max_delay` where the policy bounds the jitter too (ojs-retry §5.3).
    """
    try:
        grown = policy.initial_delay * _growth(policy, attempt)
    except OverflowError:
        grown = policy.max_delay
    drawn = min(grown, policy.max_delay) * (1 + policy.jitter * draw)
    return min(drawn, policy.max_delay) if policy.max_delay_with_jitter else drawn


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
    """Whether this kind of error may be tried again; a pattern that ends with `*` covers every type it begins."""
    return error.retryable and not any(_covers(pattern, error.type) for pattern in policy.non_retryable_errors)


def _covers(pattern: str, error_type: str) -> bool:
    return error_type.startswith(pattern[:-1]) if pattern.endswith("*") else error_type == pattern
