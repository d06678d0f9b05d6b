"""Grants of agents, as operators store them: one guarded event for each change."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from typing_extensions import override

from .. import subjects
from ..domain import agent, agent_grants
from ..domain.agent_grants import EVERY, EveryShardGranted, TooManyGrants
from ..domain.events import OF_THE_NAME, Actor, AgentGranted, QueueGrant, Recorded
from ..ports import EventLog
from .documents import Document, Take, unlimited
from .operations.errors import OperationError

GrantVerb: TypeAlias = Literal["allow", "revoke"]
_QUEUE: Final = re.compile(r"\*|[a-z0-9][a-z0-9\-.]{0,254}")
_MAX_PATTERN: Final = 255


class InvalidGrant(OperationError):
    """A name, a queue or a function of a grant is invalid."""

    code = "invalid-grant"


@dataclass(frozen=True, slots=True)
class GrantAnswer:
    """The grants of a name after a request."""

    agent: str
    changed: bool
    grants: tuple[QueueGrant, ...] | None
    """None: nothing was ever stored for the name."""
    shards: tuple[str, ...] | None = None
    """The shards that agents of the name may own, `*` for every shard; None: no operator limited them."""


class Grants(Document[AgentGranted, AgentGranted | None]):
    """The grants of one name."""

    kind = AgentGranted

    def __init__(self, log: EventLog, name: str) -> None:
        super().__init__(log)
        self.scope = subjects.agent(name, OF_THE_NAME)

    @override
    def view(self, newest: Recorded[AgentGranted] | None) -> AgentGranted | None:
        return None if newest is None else newest.message


async def change(  # noqa: PLR0913 - the fields of a grant
    log: EventLog,
    verb: GrantVerb,
    name: str,
    queues: Sequence[str],
    functions: Sequence[str],
    *,
    shards: Sequence[str] = (),
    by: Actor | None = None,
    reason: str | None = None,
    take: Take = unlimited,
) -> GrantAnswer:
    """Add functions of queues, and shards, to the grants of a name, or remove them.

    The name needs no agent yet, so that a grant can precede its workers. `take` takes the room for the event.

    Raises:
        InvalidGrant: a name, a queue, a function or a shard is invalid, no queue is allowed, a shard is taken from agents that may own
            every shard or have no grants, or the event would be too large.
    """
    _check(name, queues, functions, shards)
    known: list[AgentGranted | None] = []

    def edit(newest: AgentGranted | None) -> AgentGranted | None:
        known[:] = [newest]
        if newest is None and shards and (verb == "revoke" or not queues):
            raise InvalidGrant(
                f"Agents of the name {name!r} have no grants, and shards are limited together with queues. Run "
                f"`tocsin agents allow {name} --queue QUEUE --shard SHARD` with the queues and shards that they may have."
            )
        if verb == "allow" and not queues and not shards:
            raise InvalidGrant("No queue is named. Name queues with --queue, or every queue with `--queue '*'`.")
        try:
            if verb == "allow":
                return agent_grants.allow(newest, name, queues, functions or (EVERY,), shards=shards)
            return agent_grants.revoke(newest, name, queues, functions, shards=shards)
        except (TooManyGrants, EveryShardGranted) as error:
            raise InvalidGrant(str(error), code=error.code) from error

    stored = await Grants(log, name).replace(edit, by=by, reason=reason, take=take)
    current = stored or known[0]
    if current is None:
        return GrantAnswer(name, changed=False, grants=None)
    return GrantAnswer(name, stored is not None, current.grants, current.shards)


def _check(name: str, queues: Sequence[str], functions: Sequence[str], shards: Sequence[str]) -> None:
    if not agent.is_agent_name(name):
        raise InvalidGrant(f"The name {name!r} is invalid. Use 1 to {agent.MAX_NAME} letters, digits, `_` and `-`.")
    if len(queues) > agent.MAX_QUEUES:
        raise InvalidGrant(f"{len(queues)} queues are named, and at most {agent.MAX_QUEUES} may be.")
    for queue in queues:
        if not _QUEUE.fullmatch(queue):
            raise InvalidGrant(f"The queue {queue!r} is invalid. Use a queue's name, or `*` for every queue.")
    for pattern in functions:
        if not 0 < len(pattern) <= _MAX_PATTERN or not pattern.isprintable():
            raise InvalidGrant(
                f"The function {pattern!r} is invalid. Use 1 to {_MAX_PATTERN} characters, such as `mail/*`."
            )
    try:
        agent.checked_shards(shards)
    except ValueError as error:
        raise InvalidGrant(f"The grant is invalid: {error}.") from error
