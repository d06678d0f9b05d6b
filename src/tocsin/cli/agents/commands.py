"""`tocsin agents`: list, show, drain, disable and enable."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from ...domain.agent import AgentRecord
from ...domain.text import counted
from ..output.format import local, state
from ..output.tables import table
from ..runtime.event_loop import run
from ..runtime.session import session_of

Name = Annotated[str, typer.Argument(metavar="NAME", help="The agent's name.")]
NameOrId = Annotated[str, typer.Argument(metavar="NAME|ID", help="The agents of a name, or one process by its id.")]
Reason = Annotated[str | None, typer.Option(help="Reason, recorded in the event.")]


def list_agents(context: typer.Context) -> None:
    """List the agents: registered worker processes.

    Example: `tocsin agents list`
    """
    session = session_of(context)

    async def read() -> tuple[AgentRecord, ...]:
        async with session.operator() as operator:
            return await operator.agents()

    agents = run(read())
    session.output.answer(
        _json(agents),
        lambda: [
            table(
                ("AGENT", "STATE", "QUEUES", "FUNCTIONS", "HOLDS", "HOST", "ID"),
                [_row(agent) for agent in agents],
                empty="no agents. A worker registers when it starts, if the stage `agent_keeper` runs.",
                least=("HOST", "ID", "FUNCTIONS"),
            )
        ],
    )


def show(context: typer.Context, agent: NameOrId) -> None:
    """Show the agents of a name, with their functions and the tasks that they hold.

    Example: `tocsin agents show mail-1`
    """
    session = session_of(context)

    async def read() -> tuple[AgentRecord, ...]:
        async with session.operator() as operator:
            return await operator.agents(agent)

    agents = run(read())
    session.output.answer(_json(agents), lambda: [line for record in agents for line in _page(record)])


def drain(context: typer.Context, agent: NameOrId, reason: Reason = None) -> None:
    """Let agents finish their tasks and take no more, until their processes end.

    Example: `tocsin agents drain mail-1`
    """
    session = session_of(context)

    async def request() -> tuple[AgentRecord, ...]:
        async with session.operator() as operator:
            return await operator.drain_agents(agent, reason=reason)

    drained = run(request())
    session.output.answer(
        {"agent": agent, "action": "drained", "agents": [record.agent_id for record in drained]},
        lambda: [Text(f"draining {counted(len(drained), 'process', 'processes')} of {agent}", style="yellow")],
    )


def disable(context: typer.Context, agent: Name, reason: Reason = None) -> None:
    """Let agents of a name take no tasks, also after a restart.

    Example: `tocsin agents disable mail-1 --reason "disk is full"`
    """
    _switch(context, agent, reason, enabled=False)


def enable(context: typer.Context, agent: Name, reason: Reason = None) -> None:
    """Let agents of a name take tasks again.

    Example: `tocsin agents enable mail-1`
    """
    _switch(context, agent, reason, enabled=True)


def _switch(context: typer.Context, agent: str, reason: str | None, *, enabled: bool) -> None:
    session = session_of(context)

    async def request() -> bool:
        async with session.operator() as operator:
            return await operator.switch_agents(agent, enabled=enabled, reason=reason)

    changed, action = run(request()), "enabled" if enabled else "disabled"
    already = "" if changed else " (it was already)"
    session.output.answer(
        {"agent": agent, "action": action, "changed": changed},
        lambda: [Text.assemble((f"{action} ", "yellow"), (agent, "bold"), already)],
    )


def _json(agents: Sequence[AgentRecord]) -> list[dict[str, object]]:
    return [agent.model_dump(mode="json") for agent in agents]


def _row(agent: AgentRecord) -> tuple[object, ...]:
    return (
        Text(agent.name, style="bold"),
        state(agent.state.value),
        ", ".join(agent.queues),
        ", ".join(agent.functions),
        f"{len(agent.held)} of {agent.max_concurrent_jobs}",
        agent.host,
        agent.agent_id,
    )


def _page(agent: AgentRecord) -> list[Text]:
    labels = ", ".join(f"{name}={value}" for name, value in agent.labels.items())
    return [
        Text.assemble((agent.name, "bold"), "  ", state(agent.state.value), f" since {local(agent.since)}"),
        *(
            Text(f"{name:<10} {value}")
            for name, value in (
                ("id", agent.agent_id),
                ("host", agent.host),
                ("version", agent.version),
                ("labels", labels or "none"),
                ("queues", ", ".join(agent.queues)),
                ("functions", ", ".join(agent.functions) or "none"),
                ("holds", f"{len(agent.held)} of {agent.max_concurrent_jobs}"),
            )
        ),
        *(Text(f"           {task}", style="dim") for task in agent.held),
    ]
