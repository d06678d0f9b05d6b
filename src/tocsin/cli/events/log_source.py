"""Where commands that look at a whole log get it from: the streams as they are now, or an export."""

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
    """Messages of both streams, side by side by time, and which of the log's they are."""

    messages: AsyncIterator[StoredMessage]
    selection: Selection


@asynccontextmanager
async def source(session: Session, file: Path | None, selection: Selection) -> AsyncIterator[Source]:
    """Open an export, or the streams.

    Raises:
        UsageError: the export cannot be used, or does not hold what is asked of it.
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
    """An export, with errors that name it.

    Raises:
        UsageError: it cannot be used.
    """
    try:
        with open_export(file, sys.stdin.buffer) as export:
            yield export
    except ExportError as error:
        raise UsageError(f"{file}: {error}") from None
    except OSError as error:
        raise UsageError(f"{file}: {(error.strerror or str(error)).lower()}") from None


def narrowed(export: Export, selection: Selection) -> Selection:
    """What is left of an export after selecting from it.

    Raises:
        UsageError: what is asked for is not in it.
    """
    held = export.manifest.selection
    if held.job is not None and selection.job not in {None, held.job}:
        raise UsageError(f"the export holds the job {held.job!r} only", Exit.NOT_FOUND)
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
        raise UsageError(f"{file}: {error}") from None
