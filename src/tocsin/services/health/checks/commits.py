"""Check the processes on the log of commits.

The checks report the leaders, the progress of each process, and the reasons for late commits.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from ....domain.commit import FORMAT
from ....domain.text import counted
from ....engine.presence import Present
from ....engine.stage_leases import lease_of
from ....subjects import COMMITS
from ..findings import CheckContext, Finding, bad, ok, warn
from ..status import LOST_AFTER_S, UNANSWERED_AFTER_S, named

LATE_AFTER: Final = timedelta(seconds=10)
"""Age from which a message that a leader has not read is late."""


async def leaders(context: CheckContext) -> list[Finding]:
    """Report stages for which no process decides (`stage-absent`)."""
    stages, leases = context.target.led, context.status.leases
    if leases is None:
        return []  # another finding reports why
    held = {lease.name for lease in leases}
    return [
        bad(
            "stage-absent",
            f"no process leads the stage {lease_of(stage)}",
            means="it makes no decisions",
            do=f"run `tocsin run {lease_of(stage)}`; if it runs, read its log",
            stage=stage,
        )
        for stage in stages
        if lease_of(stage) not in held
    ]


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
