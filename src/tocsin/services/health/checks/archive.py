"""Checks of the archive: whether it works, can be read, and takes old messages."""

from datetime import timedelta
from typing import Final

from ....archive.log_archive import ArchiveDamaged, commits_of
from ....domain.commit import FIRST_PARTITION
from ....domain.text import utc_text
from ....ports import ArchiveUnavailable
from ..findings import CheckContext, Finding, bad, ok, warn

LATE: Final = timedelta(hours=24)
"""The time after which a place that does not move is a finding."""


async def failures(context: CheckContext) -> Finding | None:
    """Report an archiver that fails (`archive-failing`)."""
    if not context.target.settings.archive.enabled:
        return None
    state, _ = await context.target.archive.state()
    if state.failure is None:
        return ok("archive-failing", "the newest run of the archiver did not fail")
    hours = context.age(state.failure.since).total_seconds() / 3_600
    return warn(
        "archive-failing",
        f"the archiver has failed for {hours:.1f} hours: {state.failure.reason}",
        means="nothing leaves the streams, which grow until they refuse inputs; no job waits for it",
        do="correct what the reason names; the archiver tries again each `archive.interval` by itself",
        since=state.failure.since.isoformat(),
    )


async def store(context: CheckContext) -> Finding | None:
    """Read the newest segment (`archive-unavailable`, `archive-damaged`)."""
    try:
        archive = context.target.archive
        state, _ = await archive.state()
        newest = [await archive.segment(each.segment, each.sha256) for each in state.newest.values()]
        for segment in newest:
            await archive.messages(segment)
    except ArchiveDamaged as error:
        return bad(
            "archive-damaged",
            str(error),
            means="executions in it cannot be read or audited",
            do="restore the object from another copy, such as a backup or an older version in the bucket",
        )
    except (ArchiveUnavailable, OSError) as error:
        return warn(
            "archive-unavailable",
            f"the archive cannot be read from here: {error}",
            means="old executions cannot be read, audited or backed up; jobs run on",
            do="check `archive.target` and `archive.s3`, the credentials, and that the store runs",
        )
    number = sum(segment.index for segment in newest)
    return ok("archive-unavailable", f"the newest of {number:,} segments can be read") if number else None


async def held(context: CheckContext) -> Finding:
    """Report the holders that keep archived commits in their stream for over a day (`archive-held`)."""
    archive = context.target.archive
    state, _ = await archive.state()
    number = 0
    async for segment in archive.back(commits_of(FIRST_PARTITION), state):
        number = 0 if segment.head is None else segment.head.number
        break
    late = [
        f"{name} since {utc_text(place.since)} (event {place.number:,})"
        for name, place in sorted(state.places.items())
        if place.number < number and context.age(place.since) >= LATE
    ]
    if not late:
        return ok("archive-held", "every stage and follower is beyond the archived commits, or moves")
    return warn(
        "archive-held",
        f"places before event {number:,} do not move: {', '.join(late)}",
        means="commits after the place of a stage stay in their stream, which grows; a follower reads on in the archive",
        do="start the stage; nothing is lost meanwhile",
        held=[*late],
    )
