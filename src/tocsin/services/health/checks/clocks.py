"""Check clocks and leader leases: without them nothing becomes due."""

from datetime import timedelta
from typing import Final

from ....subjects import MATCHER_LEASE, RECOVERER_LEASE, TICKER_LEASE
from ..findings import CheckContext, Finding, bad, ok, warn

SKEW_WARNING: Final = timedelta(seconds=2)
SKEW_STOPS_TICKER: Final = timedelta(seconds=10)
"""A ticker whose clock is so far ahead of the log's decides nothing (`engine.clock_guard`)."""


async def machine(context: CheckContext) -> list[Finding]:
    """Compare this machine's clock with the log's (`clock-skew`)."""
    skew = context.target.clock.now() - await context.target.log.now()
    return [_judge("clock-skew", "this machine", skew)]


async def leaders(context: CheckContext) -> list[Finding]:
    """Report missing leaders and their clocks (`no-leader`, `no-matcher`, …)."""
    leases = context.status.leases
    if leases is None:
        return []  # another finding reports why
    findings = [
        _judge("leader-clock", f"the leader {lease.holder}", lease.said_at - lease.renewed_at) for lease in leases
    ]
    held_leases = {lease.name for lease in leases if lease.ends_at is None or lease.ends_at > context.now}
    if TICKER_LEASE not in held_leases:
        findings.append(
            bad(
                "no-leader",
                "no ticker leads",
                means="no job becomes due; the next ticker that leads decides on every missed instant",
                do="run `tocsin run ticker`, more than once on more than one machine",
            )
        )
    if RECOVERER_LEASE not in held_leases:
        findings.append(
            bad(
                "no-recoverer",
                "no recoverer leads",
                means="lost tasks and overrun attempts are not ended, and keep their locks",
                do="run `tocsin run recoverer`, more than once on more than one machine",
            )
        )
    if context.target.settings.matched_queues and MATCHER_LEASE not in held_leases:
        findings.append(
            bad(
                "no-matcher",
                "no matcher leads",
                means="tasks of matched queues are not started; they wait, and none is lost",
                do="run `tocsin run matcher`, more than once on more than one machine",
                queues=list(context.target.settings.matched_queues),
            )
        )
    if {TICKER_LEASE, RECOVERER_LEASE} <= held_leases:
        findings.append(ok("no-leader", "a ticker and a recoverer lead"))
    return findings


def _judge(code: str, owner: str, skew: timedelta) -> Finding:
    seconds = abs(skew.total_seconds())
    direction = "ahead of" if skew > timedelta() else "behind"
    if abs(skew) < SKEW_WARNING:
        return ok(code, f"the clock of {owner} agrees with the log's", seconds=round(seconds, 3))
    make = bad if abs(skew) >= SKEW_STOPS_TICKER else warn
    return make(
        code,
        f"the clock of {owner} is {seconds:.1f} s {direction} the log's",
        means="jobs fire early or late by as much; a ticker that is 10 s ahead decides nothing",
        do="synchronise the clock of every machine with NTP",
        seconds=round(seconds, 3),
    )
