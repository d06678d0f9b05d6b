"""`tocsin events export`: the complete log as a file."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer
from rich.text import Text

from ... import __version__
from ...archive import Manifest, Selection, extents, read, write
from ...domain.wording import counted
from ...subjects import STREAMS, Stream
from ..input.values import instant
from ..output.format import destination
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of

StreamName: TypeAlias = Literal["LEDGER", "REPORTS", "LOG"]


def export(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Destination, compressed if it ends in .gz; by default standard output."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Export messages stored since then, and all definitions.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Export messages stored until then.")] = None,
    job: Annotated[str | None, typer.Option(help="Export only this job.")] = None,
    stream: Annotated[StreamName | None, typer.Option(help="Export only this stream; by default all of them.")] = None,
) -> None:
    """Write every stored message as a JSON object, one per line.

    `tocsin audit --file` and `tocsin events replay --file` read the result. The first line describes the content; the last
    line holds the number of messages and their digest, so that a truncated file is detected.
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
        total = f"exported {counted(counts.total(), 'message')} to {out}"
        data = {"file": str(out), "messages": counts.total(), "streams": of_streams}
        session.output.answer(data, lambda: [Text(total, style="bold")])


async def _export(session: Session, out: Path | None, selection: Selection) -> Counter[Stream]:
    async with session.installation() as installation:
        upto = await extents(installation.stored, selection)
        manifest = Manifest(await installation.identity(), installation.settings.root, __version__, selection, upto)
        with destination(out, is_compressed=out is not None and out.suffix == ".gz") as file:
            return await write(file, manifest, read(installation.stored, selection, upto))
