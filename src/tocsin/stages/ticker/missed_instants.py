"""Says where operators look that instants passed without firing, and nobody wished it: a line in the log, and a counter.

The public is told with `cron.missed` (`announcements`).
"""

from typing import Final

import structlog

from ... import telemetry
from ...domain.events import MISSED_REASONS, Passed

_log = structlog.get_logger("tocsin.ticker")
_instants: Final = telemetry.meter().create_counter(
    "tocsin_instants_missed", unit="{instant}", description="Scheduled instants that passed without firing, unforeseen."
)


def tell(passed: Passed) -> None:
    """Tell of a span, if it is worth telling."""
    if passed.reason not in MISSED_REASONS:
        return
    _instants.add(passed.count, {"job": passed.job, "reason": passed.reason})
    say = _log.error if passed.reason == "throttled" else _log.warning
    say(
        "out of hand" if passed.reason == "throttled" else "instants were missed",
        action=passed.reason,
        job=passed.job,
        count=passed.count,
        start=passed.start.isoformat(),
        until=passed.until.isoformat(),
    )
