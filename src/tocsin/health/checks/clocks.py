"""Clocks, and who leads: without either nothing becomes due."""

from datetime import timedelta
from typing import Final

from ...subjects import RECOVERER_LEASE, TICKER_LEASE
from ..context import CheckContext
from ..finding import Finding, bad, ok, warn

SKEWED: Final = timedelta(seconds=2)
"""From here on a clock is worth a word."""
STOPPED: Final = timedelta(seconds=10)
"""A ticker that is so far ahead of the log decides nothing (`engine.clock_guard`)."""


async def machine(look: CheckContext) -> list[Finding]:
    """`clock-skew`: this machine's clock against the log's."""
    off = look.installation.clock.now() - await look.installation.log.now()
    return [_judged("clock-skew", "this machine", off)]


async def leaders(look: CheckContext) -> list[Finding]:
    """`no-leader`, `no-recoverer`, and `leader-clock`: the clock of whoever leads against the log's."""
    leases = look.status.leases
    if leases is None:
        return []  # told already
    findings = [
        _judged("leader-clock", f"the leader {lease.holder}", lease.said_at - lease.renewed_at) for lease in leases
    ]
    led = {lease.name for lease in leases if lease.ends_at is None or lease.ends_at > look.now}
    if TICKER_LEASE not in led:
        findings.append(
            bad(
                "no-leader",
                "no ticker leads",
                means="no job becomes due; when a ticker leads again it decides on every instant that was missed",
                do="run `tocsin run ticker`, more than once on more than one machine",
            )
        )
    if RECOVERER_LEASE not in led:
        findings.append(
            bad(
                "no-recoverer",
                "no recoverer leads",
                means="what an executor lost, and what takes too long, is ended by nobody; locks stay with it",
                do="run `tocsin run recoverer`, more than once on more than one machine",
            )
        )
    return (
        findings
        if {TICKER_LEASE, RECOVERER_LEASE} - led
        else [*findings, ok("no-leader", "a ticker and a recoverer lead")]
    )


def _judged(code: str, whose: str, off: timedelta) -> Finding:
    seconds = abs(off.total_seconds())
    direction = "ahead of" if off > timedelta() else "behind"
    if abs(off) < SKEWED:
        return ok(code, f"the clock of {whose} agrees with the log's", seconds=round(seconds, 3))
    make = bad if abs(off) >= STOPPED else warn
    return make(
        code,
        f"the clock of {whose} is {seconds:.1f} s {direction} the log's",
        means="jobs fire early or late by as much; a ticker that is 10 s ahead decides nothing",
        do="have every machine keep its time by NTP",
        seconds=round(seconds, 3),
    )
