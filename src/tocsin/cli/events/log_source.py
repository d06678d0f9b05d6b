"""The source of a whole log: the current streams, or an export."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...archive import Export, ExportError, Selection, extents, open_export, read
from ...ports import StoredMessage
from ..runtime.errors import Exit, UsageError
from ..runtime.session import Session


@dataclass(frozen=True, slots=True)
class Source:
    """Messages of all streams in the order of time, and the selection that they cover."""

    messages: AsyncIterator[StoredMessage]
    selection: Selection


@asynccontextmanager
async def source(session: Session, file: Path | None, selection: Selection) -> AsyncIterator[Source]:
    """Open an export or the streams.

    Raises:
        UsageError: the export is invalid, or it does not hold the selection.
        Unreachable: NATS does not answer.
    """
    if file is None:
        async with session.installation() as installation:
            upto = await extents(installation.stored, selection)
            yield Source(read(installation.stored, selection, upto), selection)
        return
    with opened(file) as export:
        held = narrowed(export, selection)
        yield Source(_selected(file, export, held), held)


@contextmanager
def opened(file: Path) -> Iterator[Export]:
    """Open an export; errors name the file.

    Raises:
        UsageError: the export is invalid or cannot be read.
    """
    try:
        with open_export(file, sys.stdin.buffer) as export:
            yield export
    except ExportError as error:
        raise UsageError(f"{file}: {error}", code=error.code) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{file}: {reason}; check the path", code="unreadable-file") from None


def narrowed(export: Export, selection: Selection) -> Selection:
    """Return the selection that an export can serve.

    Raises:
        UsageError: the export does not hold the job.
    """
    held = export.manifest.selection
    if held.job is not None and selection.job not in {None, held.job}:
        raise UsageError(
            f"the export holds only job {held.job!r}: use an export that holds {selection.job!r}",
            Exit.NOT_FOUND,
            code="job-not-in-export",
        )
    since = max((at for at in (held.since, selection.since) if at is not None), default=None)
    until = min((at for at in (held.until, selection.until) if at is not None), default=None)
    streams = tuple(stream for stream in held.streams if stream in selection.streams)
    return Selection(streams, selection.job or held.job, since, until, selection.execution_id)


async def _selected(file: Path, export: Export, selection: Selection) -> AsyncIterator[StoredMessage]:
    try:
        for message in export.messages:
            if message.stream in selection.streams and selection.has(message):
                yield message
    except ExportError as error:
        raise UsageError(f"{file}: {error}", code=error.code) from None
