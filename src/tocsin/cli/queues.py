"""`tocsin queues`: list, show, pause, resume and purge."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from ..domain.text import counted
from ..services.queue_decisions import PurgeAnswer, QueuePurge
from ..services.queues import QueueDetails, find
from .input.values import Reason, Yes, check, confirm
from .output.format import local
from .output.tables import table
from .runtime.session import Session

Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name.")]


def list_queues(session: Session) -> None:
    """List the queues, with their tasks and the agents that serve them.

    Example: `tocsin queues list`
    """
    known = session.ask(lambda operator: operator.queues())
    session.output.answer(
        [asdict(queue) for queue in known],
        lambda: [
            table(
                ("QUEUE", "TRANSPORT", "STATE", "WAITING", "TAKEN", "OLDEST", "AGENTS", "FUNCTIONS", "JOBS"),
                [_row(queue) for queue in known],
                empty="no queues",
                least=("FUNCTIONS", "OLDEST", "JOBS"),
            ),
            *(Text(line, style="red") for queue in known for line in _problems(queue)),
        ],
    )


def show(session: Session, queue: Name) -> None:
    """Show a queue, with its agents, their functions, and the jobs that use it.

    Example: `tocsin queues show default`
    """
    details = find(queue, session.ask(lambda operator: operator.queues()))
    session.output.answer(asdict(details), lambda: _page(details))


def pause(session: Session, queue: Name, reason: Reason = None) -> None:
    """Let the tasks of a queue wait until it is resumed; running tasks finish.

    Example: `tocsin queues pause mail --reason "the mail server moves"`
    """
    changed = session.ask(lambda operator: operator.switch_queue(queue, paused=True, reason=reason))
    session.output.action("queue", queue, "paused", changed=changed, otherwise="it was already paused")


def resume(session: Session, queue: Name, reason: Reason = None) -> None:
    """Hand out the tasks of a paused queue again.

    Example: `tocsin queues resume mail`
    """
    changed = session.ask(lambda operator: operator.switch_queue(queue, paused=False, reason=reason))
    session.output.action("queue", queue, "resumed", changed=changed, otherwise="it was not paused")


def purge(
    session: Session,
    queue: Name,
    reason: Reason = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many tasks wait.")] = False,
    yes: Yes = False,
) -> None:
    """Cancel the executions whose tasks wait in a queue now.

    Tasks that a worker has go on, as do those that the MQ bridge has handed over, and tasks that are dispatched later are not touched.

    Example: `tocsin queues purge mail --reason "sent to the wrong list" --yes`
    """
    if not dry_run:
        check(f"purge {queue}?", yes=yes)
    answer = session.ask(lambda operator: operator.purge_queue(queue, reason=reason, dry_run=True))
    if not dry_run:
        confirm(f"cancel the executions of {_tasks(answer)} in {queue}?", yes=yes, otherwise="nothing was purged")
        answer = session.ask(lambda operator: operator.purge_queue(queue, reason=reason))
    verb = "would purge" if dry_run else "purging" if answer.changed else "nothing to purge in"
    session.output.answer(
        asdict(answer) | {"dry_run": dry_run},
        lambda: [Text.assemble((f"{verb} ", "yellow"), (queue, "bold"), f": {_tasks(answer)}")],
    )


def _tasks(answer: PurgeAnswer) -> str:
    return "an unknown number of waiting tasks" if answer.waiting is None else counted(answer.waiting, "waiting task")


def _row(queue: QueueDetails) -> tuple[object, ...]:
    return (
        Text(queue.name, style="bold"),
        queue.transport,
        Text("paused", style="yellow") if queue.paused else "open",
        count(queue.waiting),
        count(queue.taken),
        "" if queue.oldest is None else local(queue.oldest),
        ", ".join(queue.agents),
        ", ".join(queue.functions),
        len(queue.jobs),
    )


def _page(queue: QueueDetails) -> list[Text]:
    waits = ", ".join(f"{name} {number:,}" for name, number in queue.waiting_functions.items())
    return [
        Text.assemble((queue.name, "bold"), f"  {queue.transport}"),
        *(
            Text(f"{name:<10} {value}")
            for name, value in (
                ("waiting", count(queue.waiting) + (f"  ({waits})" if waits else "")),
                *([("", f"{queue.handed_over:,} of them in hip-62's queue")] if queue.handed_over else []),
                ("taken", count(queue.taken)),
                ("oldest", "none" if queue.oldest is None else local(queue.oldest)),
                ("agents", ", ".join(queue.agents) or "none"),
                ("functions", ", ".join(queue.functions) or "none"),
                ("jobs", ", ".join(queue.jobs) or "none"),
                *([("purging", counted(queue.purging, "task"))] if queue.purging else []),
                *([("purged", _purged(queue.purged))] if queue.purged else []),
                *_limits(queue),
            )
        ),
        *(Text(line, style="red") for line in _problems(queue)),
    ]


def _limits(queue: QueueDetails) -> Iterator[tuple[str, str]]:
    if queue.concurrency is not None:
        holds = ", holds back tasks" if queue.held_by == "concurrency" else ""
        yield "limit", f"{queue.concurrency:,} tasks at a time{holds}"
    if queue.rate is not None:
        yield "rate", queue.rate + (", holds back tasks" if queue.held_by == "rate" else "")
    if queue.held_by == "namespace":
        yield "namespace", "its quota max_running holds back tasks"
    if queue.held_back.waiting:
        yield "held back", f"{queue.held_back.waiting:,} by limits of their jobs"
    for group in queue.held_back.groups:
        yield "", f"{group.waiting:,} by limit {group.limit:,} of {group.counted} ({group.running:,} run)"


def _problems(queue: QueueDetails) -> list[str]:
    paused = [f"{queue.name!r} is {queue.paused}, since {local(queue.paused.since)}"] if queue.paused else []
    is_used = queue.jobs or queue.waiting
    if is_used and not queue.taken and not queue.agents and queue.transport != "mq":
        return [*paused, f"no live agent serves {queue.name!r}: start a worker for it"]
    return paused


def _purged(purge: QueuePurge) -> str:
    by = f" by {purge.by}" if purge.by else ""
    number = "" if purge.waiting is None else f", {counted(purge.waiting, 'task')}"
    return f"{local(purge.at)}{by}{number}{f': {purge.reason}' if purge.reason else ''}"


def count(number: int | None) -> str:
    """Return a number for people, as far as it is known."""
    return "unknown" if number is None else f"{number:,}"
