"""`tocsin jobs history`, `jobs rollback` and the diff of two revisions."""

from dataclasses import asdict
from difflib import unified_diff
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from ...adapters.files import dump_yaml
from ...domain.definition import JobDefinition
from ...services.operator import Operator
from ..input.values import JobName, Reason
from ..output.tables import print_table
from ..runtime.errors import UsageError
from ..runtime.session import Session

if TYPE_CHECKING:
    from ...services.timeline import JobRevision

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def history(
    session: Session,
    job: JobName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of revisions.")] = 20,
) -> None:
    """List the changes to a job's definition, newest first.

    REVISION is the number for `jobs diff` and `jobs rollback`.

    Example: `tocsin jobs history nightly`
    """
    revisions = session.ask(lambda operator: operator.revisions(job))[:limit]
    print_table(
        session.output,
        [asdict(revision) for revision in revisions],
        ("REVISION", "WHEN", "CHANGE", "BY", "FIELDS", "REASON"),
        map(_row, revisions),
        empty="no revisions",
        least=("REASON", "BY", "FIELDS"),
    )


def _row(revision: "JobRevision") -> tuple[object, ...]:
    number = Text(str(revision.sequence), style="bold" if revision.is_current else "")
    kind = f"{revision.kind} (in force)" if revision.is_current else revision.kind
    return number, revision.at, kind, revision.by, ", ".join(revision.changed), revision.reason


def rollback(
    session: Session,
    job: JobName,
    revision: Annotated[int, typer.Argument(metavar="REVISION", min=1, help="A number of `jobs history`.")],
    reason: Reason = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the difference without changing anything.")] = False,
) -> None:
    """Register the definition of an earlier revision again, as a new revision.

    Example: `tocsin jobs rollback nightly 12 --reason "the new schedule was wrong"`
    """

    async def work(operator: Operator) -> str:
        current, definition = await operator.job(job), await operator.definition(job, revision)
        text = difference(current.definition, "in force", definition, f"revision {revision}")
        if text and not dry_run:
            await operator.roll_back(job, revision, current=current.sequence, reason=reason)
        return text

    text = session.ask(work)
    changed = bool(text) and not dry_run
    verb = "rolled back" if changed else "would roll back" if text else "already at the definition of"
    session.output.answer(
        {"job": job, "revision": revision, "changed": changed, "dry_run": dry_run, "diff": text},
        lambda: [*lines(text), Text.assemble((f"{verb} ", "yellow"), (job, "bold"), f" to revision {revision}")],
    )


async def read_difference(operator: Operator, job: str, first: int | None, second: int | None) -> str:
    """Return the difference of two revisions.

    By default, these are the last two definitions, or a revision and the definition in force.
    """
    if first is None:
        defined = [revision.sequence for revision in await operator.revisions(job) if revision.kind == "defined"]
        if len(defined) < 2:  # noqa: PLR2004 - two are compared
            raise UsageError(
                f"job {job!r} has a single definition, so there is nothing to compare", code="one-revision"
            )
        second, first = defined[:2]
    before = await operator.definition(job, first)
    if second is None:
        return difference(before, f"revision {first}", (await operator.job(job)).definition, "in force")
    return difference(before, f"revision {first}", await operator.definition(job, second), f"revision {second}")


def difference(before: JobDefinition, name: str, after: JobDefinition, other: str) -> str:
    """Return the difference of two definitions as YAML; empty: they are equal."""
    old, new = (
        dump_yaml(each.model_dump(mode="json", exclude_none=True, exclude_defaults=True)).splitlines(keepends=True)
        for each in (before, after)
    )
    return "".join(unified_diff(old, new, fromfile=name, tofile=other))


def lines(text: str) -> list[RenderableType]:
    return [Text(line, style=_STYLES.get(line[:1], "")) for line in text.splitlines()]
