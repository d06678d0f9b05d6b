"""The next try after an HTTP answer: whether it makes sense, and when."""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

_RETRYABLE: Final = frozenset({408, 425, 429})
_SERVER_ERRORS: Final = 500


def is_retryable(status: int) -> bool:
    """Return whether the same request may succeed later."""
    return status in _RETRYABLE or status >= _SERVER_ERRORS


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After; a date counts from the server's own clock."""
    written = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", written):
        return float(written)
    try:
        return max(0.0, (parsedate_to_datetime(written) - parsedate_to_datetime(headers["date"])).total_seconds())
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
