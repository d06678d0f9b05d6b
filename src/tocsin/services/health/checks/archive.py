"""Check the archive: whether the archiver works, and whether its store can be read here."""

from typing import Final

from ....archive.archive import ArchiveDamaged
from ....ports import ArchiveUnavailable
from ..findings import CheckContext, Finding, bad, ok, warn

_GROWS: Final = "nothing leaves the streams, which grow until they refuse inputs; no job waits for it"


async def failures(context: CheckContext) -> list[Finding]:
    """Report an archiver that fails (`archive-failing`)."""
    if not context.target.settings.archive.enabled:
        return []
    state, _ = await context.target.archive.state()
    if state.failure is None:
        return [ok("archive-failing", "the newest run of the archiver did not fail")]
    hours = context.age(state.failure.since).total_seconds() / 3_600
    return [
        warn(
            "archive-failing",
            f"the archiver has failed for {hours:.1f} hours: {state.failure.reason}",
            means=_GROWS,
            do="correct what the reason names; the archiver tries again each `archive.interval` by itself",
            since=state.failure.since.isoformat(),
        )
    ]


async def store(context: CheckContext) -> list[Finding]:
    """Read the newest segment (`archive-unavailable`, `archive-damaged`)."""
    archive = context.target.archive
    state, _ = await archive.state()
    if state.head is None:
        return []
    try:
        segment = await archive.segment(state.head, state.head_sha256)
        await archive.messages(segment)
    except ArchiveDamaged as error:
        return [
            bad(
                "archive-damaged",
                str(error),
                means="executions in it cannot be read or audited",
                do="restore the object from another copy, such as a backup or an older version in the bucket",
            )
        ]
    except (ArchiveUnavailable, OSError) as error:
        return [
            warn(
                "archive-unavailable",
                f"the archive cannot be read from here: {error}",
                means="old executions cannot be read, audited or backed up; jobs run on",
                do="check `archive.target` and `archive.s3`, the credentials, and that the store runs",
            )
        ]
    return [ok("archive-unavailable", f"the newest of {state.number:,} segments can be read")]
