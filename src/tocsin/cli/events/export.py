"""`tocsin events export`: the log as a file, complete and byte for byte."""

import gzip
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TypeAlias, cast

import typer
from rich.text import Text

from ... import __version__
from ...archive import STREAMS, Manifest, Selection, extents, read, write
from ...subjects import Stream
from ..input.values import instant
from ..runtime.errors import Exit, UsageError
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of

StreamName: TypeAlias = Literal["LEDGER", "LOG"]


def export(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to; gzipped if it ends in .gz. Standard output by default."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="What was stored from then on, and all definitions.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="What was stored until then.")] = None,
    job: Annotated[str | None, typer.Option(help="Only what concerns this job.")] = None,
    stream: Annotated[StreamName | None, typer.Option(help="Only this stream; by default both.")] = None,
) -> None:
    """Write every message as it is stored, one JSON object a line, for `tocsin audit --file` and `tocsin events replay --file`.

    The first line says what it holds, the last one how many messages and their digest, so that a file that was cut off is
    noticed.
    """
    now = datetime.now(UTC)
    selection = Selection(
        streams=STREAMS if stream is None else (Stream(stream),),
        job=job,
        since=instant(since, "--since", now=now),
        until=instant(until, "--until", now=now),
    )
    session = session_of(context)
    counts = run(_export(session, out, selection))
    if out is not None:
        of_streams = {name.value: counts[name] for name in selection.streams}
        total = f"{counts.total():,} messages are in {out}"
        data = {"file": str(out), "messages": counts.total(), "streams": of_streams}
        session.output.answer(data, lambda: [Text(total, style="bold")])


async def _export(session: Session, out: Path | None, selection: Selection) -> Counter[Stream]:
    async with session.installation() as installation:
        upto = await extents(installation.stored, selection)
        manifest = Manifest(await installation.identity(), installation.settings.root, __version__, selection, upto)
        with _sink(out) as file:
            return await write(file, manifest, read(installation.stored, selection, upto))


@contextmanager
def _sink(out: Path | None) -> Iterator[BinaryIO]:
    """Where the lines go. A file is there wholly or not at all."""
    if out is None:
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # Whoever reads has had enough; nothing may be written to it when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise UsageError("the reader of the export has gone", Exit.INTERRUPTED) from None
        return
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        with unfinished.open("wb") as raw:
            if out.suffix == ".gz":
                # Without its own name and time, so that the same log gives the same file.
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as compressed:
                    yield cast("BinaryIO", compressed)
            else:
                yield raw
        unfinished.replace(out)
    except OSError as error:
        raise UsageError(f"{out}: {(error.strerror or str(error)).lower()}", Exit.NOT_FOUND) from None
    finally:
        unfinished.unlink(missing_ok=True)
