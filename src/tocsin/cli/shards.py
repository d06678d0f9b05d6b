"""`tocsin shards`: list the shard map, and apply another."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from ..adapters.files import load_document
from ..domain import shard_map
from ..domain.agent import AgentState
from ..domain.events import Shard
from ..domain.shard_map import ShardChange
from ..domain.text import counted
from ..services.operator import Operator
from ..services.shards import ShardMap
from .input.values import Changes, Reason, confirm
from .output.tables import print_table
from .runtime.session import Session


def list_shards(session: Session) -> None:
    """List the shards of the newest map, and their owners.

    Example: `tocsin shards list`
    """
    newest = session.ask(lambda operator: operator.shards())
    print_table(
        session.output,
        {
            "version": newest.version,
            "shards": [{**shard.document(), "owner": newest.owners.get(shard.shard_id)} for shard in newest.shards],
        },
        ("SHARD", "STATE", "OWNER", "NAME", "LABELS"),
        (_row(newest, shard) for shard in newest.shards),
        empty="no shards",
        least=("LABELS", "NAME"),
    )


def apply(
    session: Session,
    file: Annotated[str, typer.Option("--file", "-f", metavar="FILE|-", help="The file with the whole map.")],
    reason: Reason = None,
    dry_run: Changes = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove shards without confirmation.")] = False,
) -> None:
    """Replace the shard map by the map in a file.

    Nothing is changed if another operator changed the map after this command read it.
    Occurrences that come due from then on use it; those that came due before use the map that they name.

    Example: `tocsin shards apply -f shards.yaml`
    """
    wanted = shard_map.read(load_document(file))

    async def request(operator: Operator) -> tuple[ShardChange, ...]:
        newest = await operator.shards()
        shard_map.draft(wanted)
        changes = shard_map.changes(newest.shards, wanted)
        session.output.print(_lines(changes))
        if dry_run:
            return changes
        if removed := sum(change.after is None for change in changes):
            confirm(f"remove {counted(removed, 'shard')}?", yes=yes, otherwise="nothing was changed")
        if changes:
            await operator.apply_shards(wanted, expected=newest.version, reason=reason)
        return changes

    made = session.ask(request)
    session.output.answer(
        {"dry_run": dry_run, "changes": [{"shard_id": change.shard_id, **change._asdict()} for change in made]}, list
    )


def _owner(newest: ShardMap, shard: Shard) -> str:
    owner = newest.owners.get(shard.shard_id)
    if owner is None:
        return "any worker"
    return owner.name if owner.state is AgentState.ENABLED else f"{owner.name} ({owner.state.value})"


def _row(newest: ShardMap, shard: Shard) -> tuple[object, ...]:
    labels = ", ".join(f"{key}={value}" for key, value in shard.labels.items())
    return Text(shard.shard_id, style="bold"), shard.state.value, _owner(newest, shard), shard.name, labels


def _lines(changes: Sequence[ShardChange]) -> list[Text]:
    if not changes:
        return [Text("the shard map is up to date", style="dim")]
    return [
        Text.assemble((f"{_sign(change)} ", "yellow"), (change.shard_id, "bold"), _words(change)) for change in changes
    ]


def _sign(change: ShardChange) -> str:
    if change.before is None:
        return "+"
    return "-" if change.after is None else "~"


def _words(change: ShardChange) -> str:
    before, after = change.before, change.after
    if before is None or after is None:
        return f"  {after.state.value}" if after is not None else ""
    fields = [name for name in ("state", "name", "labels") if getattr(before, name) != getattr(after, name)]
    return "  " + ", ".join(
        f"{before.state.value} -> {after.state.value}" if name == "state" else name for name in fields
    )
