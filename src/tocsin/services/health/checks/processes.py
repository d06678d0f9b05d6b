"""Check the processes: their leases, their clocks, and their places in the log of commits."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from ....domain.commit import FORMAT
from ....domain.text import counted
from ....engine.clock_guard import LIMIT_S
from ....engine.presence import Present
from ....engine.saved_place import read_place
from ....engine.stage_leases import follower_of, lease_of
from ....ports import DurableSpec
from ....subjects import (
    COMMITS,
    DEPENDENCY_KEEPER_LEASE,
    MATCHER_LEASE,
    NOTARY_LEASE,
    RECOVERER_LEASE,
    TICKER_LEASE,
    Stream,
    cursor,
)
from ..coordination import AsideCandidate, Lease
from ..findings import CheckContext, Finding, bad, ok, warn
from ..status import LOST_AFTER_S, UNANSWERED_AFTER_S, named

LATE_AFTER: Final = timedelta(seconds=10)
"""Age from which a message that a leader has not read is late."""
FOLLOWS_LATE: Final = timedelta(seconds=90)
"""Age from which an event after a follower's place is late; the place is stored each 30 seconds."""


async def absent(context: CheckContext) -> list[Finding]:
    """Report stages for which no process decides (`stage-absent`)."""
    stages, leases = context.target.led, context.status.leases
    if leases is None:
        return []  # another finding reports why
    held = {lease.name for lease in leases}
    return [_absent(stage, "leads", "it makes no decisions") for stage in stages if lease_of(stage) not in held]


def _absent(stage: str, does: str, means: str) -> Finding:
    name = lease_of(stage)
    do = f"run `tocsin run {name}`; if it runs, read its log"
    return bad("stage-absent", f"no process {does} the stage {name}", means=means, do=do, stage=stage)


async def followers(context: CheckContext) -> list[Finding]:
    """Report stages that do not follow the decisions of others (`stage-absent`, `stage-late`)."""
    leases = context.status.leases
    if leases is None:
        return []  # another finding reports why
    held, findings = {lease.name for lease in leases}, list[Finding]()
    for stage, followed in context.target.followers.items():
        if follower_of(stage) not in held:
            findings.append(_absent(stage, "follows the log for", "what it shows or hands over stands still"))
            continue
        for durable in followed:
            if (since := await _not_followed(context, durable)) is not None and context.age(since) >= FOLLOWS_LATE:
                text = (
                    f"the stage {lease_of(stage)} has not handled events for {context.age(since).total_seconds():.0f} s"
                )
                do = "read its log; if it hangs, end it, and another process follows"
                findings.append(
                    warn("stage-late", text, means="what it shows or hands over is old", do=do, stage=stage)
                )
    return findings


async def _not_followed(context: CheckContext, durable: DurableSpec) -> datetime | None:
    """Return the time of the oldest event after a place; None: none, or some wait."""
    target = context.target
    place = await read_place(target.projections, cursor(Stream.LOG, durable.name))
    if place is None or place.waiting:
        return None  # it began a moment ago, or a queue is paused; an event that fails becomes a dead letter
    newer = [await target.log.read(filter_, after=place.after, limit=1) for filter_ in durable.filters]
    return min((recorded.time for read in newer for recorded in read), default=None)


async def readers(context: CheckContext) -> list[Finding]:
    """Report leaders that do not read stored messages (`stage-late`, `reader-lost`)."""
    findings = list[Finding]()
    for process in context.status.processes:
        lost = {source: seconds for source, seconds in process.lost.items() if seconds >= LOST_AFTER_S}
        if lost:
            findings.append(_lost(process, lost))
        if not process.led:
            continue
        for source, since in (await _unread(context, process)).items():
            if context.age(since) >= LATE_AFTER:
                findings.append(_late(context, process, source, since))
    if not findings and context.status.processes:
        findings.append(
            ok(
                "reader-lost",
                f"{counted(len(context.status.processes), 'process', 'processes')} read the log of commits",
            )
        )
    return findings


async def _unread(context: CheckContext, process: Present) -> Mapping[str, datetime]:
    """Return the time of the oldest message that a process must read, by its stream."""
    inspection = context.target.inspection
    places = {source: (place.filters, place.seen) for source, place in process.streams.items()}
    places[COMMITS] = (), process.sequence
    times = {
        source: await inspection.oldest_after(source, filters, sequence)
        for source, (filters, sequence) in places.items()
    }
    return {source: at for source, at in times.items() if at is not None}


def _late(context: CheckContext, process: Present, source: str, since: datetime) -> Finding:
    seconds = context.age(since).total_seconds()
    return warn(
        "stage-late",
        f"{named(process)} has not read {source} for {seconds:.0f} s",
        means="it decides on nothing that is newer there",
        do="read its log; if it hangs, end it, and another process leads its stages",
        process=process.name,
        stream=source,
    )


def _lost(process: Present, lost: Mapping[str, float]) -> Finding:
    streams = ", ".join(f"{source} for {seconds:.0f} s" for source, seconds in sorted(lost.items()))
    return bad(
        "reader-lost",
        f"{named(process)} cannot read {streams}: it has no consumer",
        means="it gives its leases up, and decides nothing until it can read again",
        do="check the limits of consumers, the permissions of its NATS user, and the servers that keep the stream",
        process=process.name,
    )


async def appends(context: CheckContext) -> list[Finding]:
    """Report commits that are not answered (`commit-unanswered`)."""
    return [
        bad(
            "commit-unanswered",
            f"{named(process)} has had no answer to a commit for {seconds:.0f} s: {reason}",
            means="nothing is decided; the process sends the same commit again, and nothing is lost",
            do="check that the stream of commits has a leader and room, and that its servers have disk space",
            process=process.name,
        )
        for process in context.status.processes
        for reason, seconds in (process.unanswered or ("", 0.0),)
        if seconds >= UNANSWERED_AFTER_S
    ]


async def formats(context: CheckContext) -> list[Finding]:
    """Report processes that do not read the newest format of this version (`format-held-up`)."""
    older = [process for process in context.status.processes if FORMAT not in process.formats]
    if not older:
        return []
    return [
        warn(
            "format-held-up",
            f"{', '.join(map(named, older))} cannot read format {FORMAT} of the log of commits",
            means="no decision that needs this format is stored while one of them runs",
            do="upgrade them, or end them",
            processes=[process.name for process in older],
        )
    ]


SKEW_WARNING: Final = timedelta(seconds=2)
LIMIT: Final = timedelta(seconds=LIMIT_S)
"""A process with a clock that is farther from the log's does not lead."""

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
    return [
        bad(
            "lease-not-renewed",
            f"{lease.holder} did not renew the lease `{lease.name}` for {since.total_seconds():.0f} s",
            means="nats-server may store nothing, for example because its disk is full; or this process hangs or was killed",
            do="look for `critical write error` in the log of nats-server, or name its monitoring endpoint with --monitor; "
            "free disk space, then restart nats-server",
        )
        for lease in context.status.leases or ()
        if (since := lease.lateness(context.now))
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
        do="synchronise the clock of its machine with NTP; if no candidate leads, synchronise the clocks of the nats-servers too",
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
