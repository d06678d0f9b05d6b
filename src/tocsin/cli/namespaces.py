"""`tocsin namespaces`: list, show and declare the namespaces of teams."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.text import Text

from ..adapters.files import load_document
from ..domain import namespaces
from ..domain.daily_use import has_daily_quota
from ..domain.events import Namespace
from ..domain.text import counted
from ..services.namespaces import NamespaceChange, NamespaceDetails, QuotaChange
from ..services.operations.errors import NotFound
from ..services.operator import Operator
from .input.values import Changes, Reason, confirm
from .output.tables import print_table
from .runtime.errors import Exit, UsageError
from .runtime.session import Session

_SIGNS = {"declare": "+", "change": "~", "remove": "-"}


def list_namespaces(session: Session) -> None:
    """List the declared namespaces.

    Example: `tocsin namespaces list`
    """
    newest = session.ask(lambda operator: operator.namespaces())
    print_table(
        session.output,
        {"version": newest.version, "namespaces": [namespace.document() for namespace in newest.namespaces]},
        ("NAMESPACE", "QUOTAS", "DESCRIPTION"),
        ((Text(each.name, style="bold"), _quotas(each), each.description) for each in newest.namespaces),
        empty="no namespaces: all jobs and queues are in the default namespace",
        least=("DESCRIPTION",),
    )


def show(
    session: Session, name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the namespace.")]
) -> None:
    """Show a namespace: its jobs, their queues, its quotas and its use today.

    Example: `tocsin namespaces show payments`
    """

    async def read(operator: Operator) -> NamespaceDetails:
        try:
            return await operator.namespace(name)
        except NotFound:
            raise UsageError(
                f"Namespace {name!r} is not declared. Run `tocsin namespaces list` to see the namespaces.",
                Exit.NOT_FOUND,
                code="namespace-not-found",
            ) from None

    found = session.ask(read)
    session.output.answer(found.document(), lambda: list(_page(found)))


def _page(found: NamespaceDetails) -> Iterator[Text]:
    yield Text(f"{found.name}  {found.description}".rstrip(), style="bold")
    yield Text(f"  {counted(found.jobs, 'job')}")
    yield Text(f"  queues: {', '.join(found.queues) or 'none'}")
    yield Text(f"  quotas: {_quotas(found)}")
    if has_daily_quota(found):
        stored = f"{found.bytes_today:,} bytes, and {found.changed_bytes_today:,} bytes of changes"
        yield Text(f"  today: {counted(found.executions_today, 'execution')}, {stored}")


def apply(
    session: Session,
    file: Annotated[str, typer.Option("--file", "-f", metavar="FILE|-", help="The file with all namespaces.")],
    reason: Reason = None,
    dry_run: Changes = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Remove namespaces, or take over existing jobs, without confirmation.")
    ] = False,
) -> None:
    """Declare the namespaces in a file, in place of those before.

    Jobs and queues whose names begin with a namespace and a dot belong to it from then on: the plan counts them. Nothing is changed if
    another administrator changed the namespaces after this command read them.

    Example: `tocsin namespaces apply -f namespaces.yaml`
    """
    wanted = namespaces.checked(namespaces.read(load_document(file)))

    async def request(operator: Operator) -> tuple[NamespaceChange, ...]:
        newest = await operator.namespaces()
        changes = await operator.plan_namespaces(wanted)
        session.output.print(_lines(changes))
        if dry_run:
            return changes
        if question := _question(changes):
            confirm(question, yes=yes, otherwise="nothing was changed")
        if changes:
            await operator.apply_namespaces(wanted, expected=newest.version, reason=reason)
        return changes

    made = session.ask(request)
    session.output.answer({"dry_run": dry_run, "changes": [change.model_dump(mode="json") for change in made]}, list)


def _question(changes: Sequence[NamespaceChange]) -> str | None:
    removed = [change for change in changes if change.action == "remove"]
    if removed:
        return f"remove {counted(len(removed), 'namespace')}?"
    taken = [change for change in changes if change.action == "declare" and (change.jobs or change.queues)]
    return f"take existing jobs and queues into {counted(len(taken), 'namespace')}?" if taken else None


def _lines(changes: Sequence[NamespaceChange]) -> list[Text]:
    if not changes:
        return [Text("the namespaces are up to date", style="dim")]
    return [line for change in changes for line in _change(change)]


def _change(change: NamespaceChange) -> list[Text]:
    held = f"  {counted(change.jobs, 'job')}"
    if change.queues:
        held += f", queues {', '.join(change.queues)}"
    lines = [Text.assemble((f"{_SIGNS[change.action]} ", "yellow"), (change.name, "bold"), held)]
    if change.quotas and change.action != "remove":
        lines.append(Text(f"    {', '.join(_words(quota) for quota in change.quotas)}"))
    if change.crossing:
        names = ", ".join(change.crossing)
        text = f"    refer to another namespace, and are refused when registered again: {names}"
        lines.append(Text(text, style="yellow"))
    return lines


def _words(change: QuotaChange) -> str:
    before = "" if change.before is None else f"{change.before:,} -> "
    return f"{change.quota} {before}{'unlimited' if change.after is None else f'{change.after:,}'}"


def _quotas(namespace: Namespace) -> str:
    given = {quota: getattr(namespace, quota) for quota in namespaces.QUOTAS}
    return ", ".join(f"{quota} {most:,}" for quota, most in given.items() if most is not None) or "none"
