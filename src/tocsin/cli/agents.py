"""`tocsin agents`: list, show, drain, disable, enable, allow and revoke."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer
from rich.text import Text

from ..domain.agent import AgentRecord
from ..domain.events import QueueGrant
from ..domain.ownership import EVERY_SHARD
from ..domain.text import counted
from ..services.agents import GrantVerb
from .input.values import Reason
from .output.format import local, state
from .output.tables import print_table
from .runtime.session import Session

_KINDS: Final = {"http": "a worker over HTTP", "mq": "an executor of hip-62's queue"}
Name = Annotated[str, typer.Argument(metavar="NAME", help="The agent's name.")]
NameOrId = Annotated[str, typer.Argument(metavar="NAME|ID", help="The agents of a name, or one process by its id.")]
Switched = Annotated[
    str, typer.Argument(metavar="NAME|ID", help="The agents of a name, or a worker over HTTP by its name or id.")
]
Queues = Annotated[list[str] | None, typer.Option("--queue", help="A queue; `*`: every queue. Repeatable.")]
Shards = Annotated[
    list[str] | None,
    typer.Option("--shard", help="A shard that agents of the name may own; `*`: every shard. Repeatable."),
]
Functions = Annotated[
    list[str] | None,
    typer.Option("--function", help="A function; `*` stands for any characters. By default all. Repeatable."),
]


def list_agents(session: Session) -> None:
    """List the agents: registered worker processes, HTTP workers, and executors of hip-62's queue.

    Example: `tocsin agents list`
    """
    agents = session.ask(lambda operator: operator.agents())
    print_table(
        session.output,
        _json(agents),
        ("AGENT", "KIND", "STATE", "QUEUES", "FUNCTIONS", "HOLDS", "LEADER", "HOST", "ID"),
        map(_row, agents),
        empty="no agents. A worker registers when it starts, if the stage `agent_keeper` runs.",
        least=("HOST", "ID", "FUNCTIONS"),
    )


def show(session: Session, agent: NameOrId) -> None:
    """Show the agents of a name, with their functions and the tasks that they hold.

    Example: `tocsin agents show mail-1`
    """
    agents = session.ask(lambda operator: operator.agents(agent))
    session.output.answer(_json(agents), lambda: [line for record in agents for line in _page(record)])


def drain(session: Session, agent: NameOrId, reason: Reason = None) -> None:
    """Let agents finish their tasks and take no more, until their processes end.

    A worker over HTTP ends by itself, and drains until `enable`.

    Example: `tocsin agents drain mail-1`
    """
    drained = session.ask(lambda operator: operator.drain_agents(agent, reason=reason))
    session.output.answer(
        {"agent": agent, "action": "drained", "agents": [record.agent_id for record in drained]},
        lambda: [Text(f"draining {counted(len(drained), 'process', 'processes')} of {agent}", style="yellow")],
    )


def disable(session: Session, agent: Switched, reason: Reason = None) -> None:
    """Let agents of a name take no tasks, also after a restart.

    The heartbeats of a worker over HTTP are answered with `quiet`.

    Example: `tocsin agents disable mail-1 --reason "disk is full"`
    """
    changed = session.ask(lambda operator: operator.switch_agents(agent, enabled=False, reason=reason))
    session.output.action("agent", agent, "disabled", changed=changed)


def enable(session: Session, agent: Switched, reason: Reason = None) -> None:
    """Let agents of a name take tasks again.

    A worker of the SDK that drains takes none before it is started again.

    Example: `tocsin agents enable mail-1`
    """
    changed = session.ask(lambda operator: operator.switch_agents(agent, enabled=True, reason=reason))
    session.output.action("agent", agent, "enabled", changed=changed)


def allow(
    session: Session,
    agent: Name,
    queue: Queues = None,
    function: Functions = None,
    shard: Shards = None,
    reason: Reason = None,
) -> None:
    """Let agents of a name get tasks of queues, also after a restart.

    With grants, agents of the name get no other tasks, and with `--shard` own no other shards. The name needs no agent yet.

    Example: `tocsin agents allow mail-1 --queue mail --function 'mail/*'`
    """
    _grant(session, "allow", agent, queue, function, shard, reason)


def revoke(
    session: Session,
    agent: Name,
    queue: Annotated[list[str] | None, typer.Option("--queue", help="A queue; by default all. Repeatable.")] = None,
    function: Functions = None,
    shard: Shards = None,
    reason: Reason = None,
) -> None:
    """Take grants from agents of a name; without options, they get no tasks.

    Example: `tocsin agents revoke mail-1 --queue mail`
    """
    _grant(session, "revoke", agent, queue, function, shard, reason)


def _grant(
    session: Session,
    verb: GrantVerb,
    agent: str,
    queues: list[str] | None,
    functions: list[str] | None,
    shards: list[str] | None,
    reason: str | None,
) -> None:
    answer = session.ask(
        lambda operator: operator.grant_agents(
            verb, agent, queues or [], functions or [], shards=shards or [], reason=reason
        )
    )
    may = f" may get {_grants(answer.grants, needs_grant=False)}"
    if answer.shards is not None:
        may += f", and own {_granted_shards(answer.shards)}"
    document = {"agent": agent, "changed": answer.changed, "grants": answer.grants, "shards": answer.shards}
    session.output.answer(document, lambda: [Text.assemble((agent, "bold"), may)])


def _granted_shards(shards: "Sequence[str]") -> str:
    return "every shard" if EVERY_SHARD in shards else ", ".join(shards) or "no shards"


def _grants(grants: Sequence[QueueGrant] | None, *, needs_grant: bool) -> str:
    if grants is None:
        return (
            "no tasks: no grant, and `agents.require_grant` is set" if needs_grant else "what it announces: no grants"
        )
    return (
        "; ".join(f"{grant.queue} ({' '.join(grant.functions)})" for grant in grants) or "no tasks: all grants revoked"
    )


def _json(agents: Sequence[AgentRecord]) -> list[dict[str, object]]:
    return [agent.model_dump(mode="json") for agent in agents]


def _row(agent: AgentRecord) -> tuple[object, ...]:
    return (
        Text(agent.name, style="bold"),
        agent.kind,
        state(agent.state.value),
        ", ".join(agent.queues),
        ", ".join(agent.functions),
        holds(agent),
        "yes" if agent.is_leader else "",
        agent.host,
        agent.agent_id,
    )


def holds(agent: AgentRecord) -> str:
    """Return the number of tasks that a worker holds, as far as it is known."""
    if agent.kind == "mq":
        return "unknown"
    if agent.kind != "agent":
        return str(len(agent.held))
    slots = agent.max_concurrent_jobs if agent.slots is None else agent.slots
    return f"{len(agent.held)} of {slots}"


def _slots(agent: AgentRecord) -> Iterator[tuple[str, str]]:
    if agent.slots is not None and agent.slots < agent.max_concurrent_jobs:
        yield "slots", f"{agent.slots}, by the scheduler policy; it announces {agent.max_concurrent_jobs}"


def _leads(agent: AgentRecord) -> str:
    if agent.is_leader:
        return "yes"
    return "no" if agent.leader_candidate else "no, and does not stand"


def _shards(agent: AgentRecord) -> str:
    declared = "every shard" if EVERY_SHARD in agent.shards else ", ".join(agent.shards)
    return f"owns {', '.join(agent.owned_shards) or 'none'}; declares {declared}"


def _origin(agent: AgentRecord) -> Iterator[tuple[str, str]]:
    if agent.kind != "agent":
        yield "kind", _KINDS[agent.kind]
        yield from [("identity", agent.identity)] if agent.identity else ()
        yield from [("heard", local(agent.heard_at))] if agent.heard_at else ()
        return
    yield "host", agent.host
    yield "version", agent.version
    yield "labels", ", ".join(f"{name}={value}" for name, value in agent.labels.items()) or "none"
    yield "may get", _grants(agent.grants, needs_grant=agent.needs_grant)
    if agent.granted_shards is not None:
        yield "may own", _granted_shards(agent.granted_shards)
    elif agent.needs_grant and agent.shards:
        yield "may own", "no shards: no grant of a shard, and `agents.require_grant` is set"


def _page(agent: AgentRecord) -> list[Text]:
    return [
        Text.assemble((agent.name, "bold"), "  ", state(agent.state.value), f" since {local(agent.since)}"),
        *(
            Text(f"{name:<10} {value}")
            for name, value in (
                ("id", agent.agent_id),
                *_origin(agent),
                ("queues", ", ".join(agent.queues)),
                ("functions", ", ".join(agent.functions) or "none"),
                ("holds", holds(agent)),
                *_slots(agent),
                *([("leader", _leads(agent))] if agent.kind == "agent" else []),
                *([("shards", _shards(agent))] if agent.shards else []),
            )
        ),
        *(Text(f"           {task}", style="dim") for task in agent.held),
    ]
