"""Check clocks and leader leases: without them nothing becomes due."""

from datetime import timedelta
from typing import Final

from ....engine.clock_guard import LIMIT_S
from ....subjects import DEPENDENCY_KEEPER_LEASE, MATCHER_LEASE, NOTARY_LEASE, RECOVERER_LEASE, TICKER_LEASE
from ..coordination import AsideCandidate, Lease
from ..findings import CheckContext, Finding, bad, ok, warn

SKEW_WARNING: Final = timedelta(seconds=2)
LIMIT: Final = timedelta(seconds=LIMIT_S)
"""A process whose clock is farther from the log's does not lead."""

_LEADERS: Final = {
    TICKER_LEASE: (
        "no-leader",
        "ticker",
        "no job becomes due; the next ticker that leads decides on every missed instant",
    ),
    RECOVERER_LEASE: (
        "no-recoverer",
        "recoverer",
        "lost tasks and overrun attempts are not ended, and keep their locks",
    ),
    MATCHER_LEASE: ("no-matcher", "matcher", "no task is started; tasks wait, and none is lost"),
    DEPENDENCY_KEEPER_LEASE: (
        "no-dependency-keeper",
        "dependency-keeper",
        "executions that depend on other jobs are not started; they wait, and none is lost",
    ),
}
"""The stages with a leader: the code of a missing leader, the name of the stage, and the effect."""


async def machine(context: CheckContext) -> Finding:
    """Compare this machine's clock with the log's (`clock-skew`)."""
    skew = context.target.clock.now() - await context.target.log.now()
    return _judge("clock-skew", "this machine", skew)


async def renewals(context: CheckContext) -> list[Finding]:
    """Report leaders that do not renew their leases (`lease-not-renewed`)."""
    late = [(lease, since) for lease in context.status.leases or () if (since := lease.lateness(context.now))]
    return [
        bad(
            "lease-not-renewed",
            f"{lease.holder} did not renew the lease `{lease.name}` for {since.total_seconds():.0f} s",
            means="nats-server may store nothing, for example because its disk is full; or this process hangs or was killed",
            do="look for `critical write error` in the log of nats-server, or name its monitoring endpoint with --monitor; "
            "free disk space, then restart nats-server",
        )
        for lease, since in late
    ]


async def leaders(context: CheckContext) -> list[Finding]:
    """Report missing leaders, and the clocks of candidates (`no-leader`, `no-matcher`, `leader-clock`, `clock-aside`, …)."""
    leases = context.status.leases
    if leases is None:
        return []  # another finding reports why
    findings = [_judge_leader(lease) for lease in leases]
    findings += [_judge_aside(candidate) for candidate in context.status.standing_aside]
    held_leases = {lease.name for lease in leases}  # the server removes the key of a lease that ended
    findings += [
        bad(
            code,
            f"no {name} leads",
            means=means,
            do=f"run `tocsin run {name}`, more than once on more than one machine",
        )
        for lease, (code, name, means) in _LEADERS.items()
        if lease not in held_leases
    ]
    if context.target.settings.notary.key is not None and NOTARY_LEASE not in held_leases:
        findings.append(
            warn(
                "no-notary",
                "no notary leads",
                means="new messages of the ledger and the log are not signed, so a change to them would not show",
                do="run `tocsin run notary` where the file of `notary.key` is; if it runs, check its log",
            )
        )
    if {TICKER_LEASE, RECOVERER_LEASE} <= held_leases:
        findings.append(ok("no-leader", "a ticker and a recoverer lead"))
    return findings


def _judge_leader(lease: Lease) -> Finding:
    measured = lease.clock_offset
    skew = lease.said_at - lease.renewed_at if measured is None else timedelta(seconds=measured)
    if not lease.is_last_resort:
        return _judge("leader-clock", f"the leader {lease.holder}", skew)
    return bad(
        "leader-clock",
        f"no candidate for `{lease.name}` has a credible clock; {lease.holder} leads as the last resort",
        means="it decides by the earlier of its clock and the log's, so that jobs may fire late by the difference",
        do="compare the clocks of these machines and of every nats-server, and synchronise them with NTP",
        seconds=round(skew.total_seconds(), 3),
    )


def _judge_aside(candidate: AsideCandidate) -> Finding:
    return warn(
        "clock-aside",
        f"{candidate.holder} does not stand for `{candidate.lease}`: its clock is "
        + _difference(timedelta(seconds=candidate.clock_offset)),
        means="it cannot replace the leader until its clock is right",
        do="synchronise the clock of its machine with NTP; if all candidates stand aside, that of every nats-server",
        seconds=round(candidate.clock_offset, 3),
        error=round(candidate.clock_error, 3),
    )


def _difference(skew: timedelta) -> str:
    direction = "ahead of" if skew > timedelta() else "behind"
    return f"{abs(skew.total_seconds()):.1f} s {direction} the log's"


def _judge(code: str, owner: str, skew: timedelta) -> Finding:
    seconds = abs(skew.total_seconds())
    if abs(skew) < SKEW_WARNING:
        return ok(code, f"the clock of {owner} agrees with the log's", seconds=round(seconds, 3))
    make = bad if abs(skew) > LIMIT else warn
    return make(
        code,
        f"the clock of {owner} is {_difference(skew)}",
        means=f"times that its processes record are wrong by as much; above {LIMIT_S:g} s they do not lead",
        do="synchronise the clock of every machine with NTP",
        seconds=round(seconds, 3),
    )
