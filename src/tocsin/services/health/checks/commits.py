"""Check the processes on the log of commits."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from ....domain.commit import FORMAT
from ....domain.text import counted
from ....engine.presence import Present
from ....engine.stage_leases import follower_of, lease_of
from ....ports import DurableSpec
from ....subjects import COMMITS, Bucket, Stream, cursor
from ..findings import CheckContext, Finding, bad, ok, warn
from ..status import LOST_AFTER_S, UNANSWERED_AFTER_S, named

LATE_AFTER: Final = timedelta(seconds=10)
"""Age from which a message that a leader has not read is late."""
FOLLOWS_LATE: Final = timedelta(seconds=90)
"""Age from which an event after a follower's place is late; the place is stored each 30 seconds."""


async def leaders(context: CheckContext) -> list[Finding]:
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
    """Return the time of the oldest event after a follower's place; None: no event follows."""
    target = context.target
    entry = await target.projections.get(Bucket.CURSORS, cursor(Stream.LOG, durable.name))
    if entry is None:
        return None  # it began a moment ago
    place = int(entry[0].split()[0])
    newer = [await target.log.read(filter_, after=place, limit=1) for filter_ in durable.filters]
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
            ok("reader-lost", f"{counted(len(context.status.processes), 'process')} read the log of commits")
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
    waiting = [
        (process, *process.unanswered)
        for process in context.status.processes
        if process.unanswered is not None and process.unanswered[1] >= UNANSWERED_AFTER_S
    ]
    return [
        bad(
            "commit-unanswered",
            f"{named(process)} has had no answer to a commit for {seconds:.0f} s: {reason}",
            means="nothing is decided; the process sends the same commit again, and nothing is lost",
            do="check that the stream of commits has a leader and room, and that its servers have disk space",
            process=process.name,
        )
        for process, reason, seconds in waiting
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
