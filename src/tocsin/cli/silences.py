"""`tocsin silences`: start, list and end."""

from typing import Annotated

import typer
from rich.text import Text

from ..domain.silence import extent
from .input.values import Reason, length
from .output.format import local
from .output.tables import print_table
from .runtime.errors import UsageError
from .runtime.session import Session


def start(
    session: Session,
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long it lasts, such as 2h.")],
    reason: Annotated[str, typer.Option(help="Reason, recorded in the event.")],
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="The job's name.")] = None,
    tag: Annotated[str | None, typer.Option(help="Silence the jobs with this tag.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Silence all jobs.")] = False,
) -> None:
    """Silence a job, the jobs with a tag, or all jobs for a time.

    Their notifications are recorded, and never sent.

    Example: `tocsin silences start report --for 2h --reason "the database moves"`
    """
    if sum((job is not None, tag is not None, every)) != 1:
        raise UsageError("Give exactly one of JOB, --tag and --all.", code="exclusive-options")
    seconds = length(duration, "--for").total_seconds()
    started = session.ask(lambda operator: operator.start_silence(job=job, tag=tag, seconds=seconds, reason=reason))
    session.output.answer(
        started.document(),
        lambda: [Text.assemble(("silenced ", "yellow"), (extent(started), "bold"), f" until {local(started.until)}")],
    )


def list_silences(session: Session) -> None:
    """List the silences in force, with who started them and why.

    Example: `tocsin silences list`
    """
    active = session.ask(lambda operator: operator.silences())
    print_table(
        session.output,
        [silence.document() for silence in active],
        ("ID", "OF", "UNTIL", "BY", "REASON"),
        (
            (Text(each.id, style="bold"), extent(each), each.until, each.by and each.by.full_name, each.reason)
            for each in active
        ),
        empty="no silences",
        least=("BY", "REASON"),
    )


def end(
    session: Session,
    silence: Annotated[str, typer.Argument(metavar="ID", help="The id of the silence.")],
    reason: Reason = None,
) -> None:
    """End a silence before its time.

    Example: `tocsin silences end 0193a5b0-0000-7000-8000-000000000001`
    """
    ended = session.ask(lambda operator: operator.end_silence(silence, reason=reason))
    session.output.answer(
        ended.document(),
        lambda: [Text.assemble(("ended ", "yellow"), f"the silence of {extent(ended)}")],
    )
