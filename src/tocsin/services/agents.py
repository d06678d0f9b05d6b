"""Agents of an installation, their grants, and queues that wait for them."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pydantic import ValidationError
from typing_extensions import override

from .. import subjects
from ..domain import agent, agent_grants
from ..domain.agent import AgentRecord, AgentState, Mode
from ..domain.agent_grants import EVERY, EveryShardGranted, TooManyGrants
from ..domain.events import (
    OF_THE_NAME,
    Actor,
    AgentFact,
    AgentGranted,
    AgentSwitched,
    Message,
    QueueGrant,
    Recorded,
    newest_of,
)
from ..domain.policy import slots
from ..domain.queue_backlog import QueueBacklog
from ..engine.outside_workers import OutsideName
from ..ports import EventLog, Projections
from ..subjects import BACKLOG_KEYS, Bucket
from . import shards
from .documents import Document, Policies, Take, decide, unlimited
from .operations.errors import NotFound, OperationError


class AgentRegistry:
    """The agents of an installation. `NotFound`: no worker has a name or id."""

    def __init__(self, log: EventLog, projections: Projections) -> None:
        self._log = log
        self._projections = projections

    async def agents(self, name: str | None = None) -> tuple[AgentRecord, ...]:
        """Return all workers, or the workers of a name or id.

        Workers that do not register are among them.

        They are sorted by name and start, and a moment old.
        """
        records: list[AgentRecord] = []
        for body in (await self._projections.entries(Bucket.AGENTS)).values():
            try:
                records.append(AgentRecord.model_validate_json(body))
            except ValidationError:
                continue  # of a newer version
        if any(record.heard_at is not None for record in records):
            now = await self._log.now()
            records = [record.at(now) for record in records]
        records.sort(key=lambda record: (record.name, record.agent_id))
        records = await shards.with_shards(self._log, await shards.with_leader(self._log, records))
        if any(record.kind == "agent" for record in records):
            ceiling = (await Policies(self._log).newest()).policy.max_concurrent_jobs
            records = [
                record.model_copy(update={"slots": slots(record.max_concurrent_jobs, ceiling)})
                if record.kind == "agent"
                else record
                for record in records
            ]
        if name is None:
            return tuple(records)
        of_name = tuple(record for record in records if name in {record.name, record.agent_id})
        if not of_name:
            raise _not_found(name, records)
        return of_name

    async def switch(
        self,
        name: str,
        *,
        enabled: bool,
        by: Actor | None = None,
        reason: str | None = None,
        take: Take = unlimited,
        is_bound: bool = False,
    ) -> bool:
        """Enable or disable all agents of a name, now and later.

        Workers over HTTP are switched that are known by this name or id now. `take` takes the room for each event.
        `is_bound`: the caller may not enable agents that it does not see.

        Return whether that changed anything.
        """
        mode: Mode = "enabled" if enabled else "disabled"
        known = await self.agents()
        over_http = await self._switch_over_http(known, name, mode, by, reason, take)
        reaches_absent = enabled and not is_bound and await self._is_disabled(name)
        if over_http and not reaches_absent and not await self._processes(name, known):
            return any(over_http.values())
        if not agent.is_agent_name(name):
            raise _not_found(name, known)

        async def facts(stored: Sequence[Recorded[Message]]) -> list[AgentFact]:
            newest = _newest_switch(stored)
            if newest is None:
                await self._registered(name)
            return agent.switch(newest, name, mode, by=by, reason=reason)

        decided = await decide(self._log, subjects.agent(name, OF_THE_NAME), facts, take=take)
        return bool(decided) or any(over_http.values())

    async def mode_over_http(self, identity: str, worker: str) -> Mode:
        """Return what operators let a worker over HTTP do.

        `worker` is its own name.
        """
        scope = subjects.agent(OutsideName(identity, worker).token, OF_THE_NAME)
        return agent.mode_of(_newest_switch(await self._log.load(scope)))

    async def drain(
        self, name: str, *, by: Actor | None = None, reason: str | None = None, take: Take = unlimited
    ) -> tuple[AgentRecord, ...]:
        """Drain the workers of a name, or one process by its id.

        A worker over HTTP drains until it is enabled, because a new process may have its id.

        Return those that were not draining. `take` takes the room for each event.
        """
        known = await self.agents()
        over_http = await self._switch_over_http(known, name, "draining", by, reason, take)
        drained = [record for record in known if over_http.get(record.agent_id)]
        processes = await (self._processes(name, known) if over_http else self._registered(name))
        live = [record for record in processes if record.state is not AgentState.LOST]
        return (*drained, *[record for record in live if await self._drain(record, by, reason, take)])

    async def _switch_over_http(
        self, known: Iterable[AgentRecord], name: str, mode: Mode, by: Actor | None, reason: str | None, take: Take
    ) -> dict[str, bool]:
        """Switch the workers over HTTP of a name or id.

        Return by id whether that changed anything.
        """

        async def switch(worker: str) -> bool:
            async def facts(stored: Sequence[Recorded[Message]]) -> list[AgentFact]:
                return agent.switch(_newest_switch(stored), worker, mode, by=by, reason=reason)

            return bool(await decide(self._log, subjects.agent(worker, OF_THE_NAME), facts, take=take))

        of_name = [record for record in known if record.kind == "http" and name in {record.name, record.agent_id}]
        return {record.agent_id: await switch(record.agent_id) for record in of_name}

    async def _is_disabled(self, name: str) -> bool:
        """Return whether agents of a name are disabled, also if none runs."""
        if not agent.is_agent_name(name):
            return False
        return agent.mode_of(_newest_switch(await self._log.load(subjects.agent(name, OF_THE_NAME)))) != "enabled"

    async def _registered(self, name: str) -> list[AgentRecord]:
        """Return the registered agents of a name or id."""
        known = await self.agents()
        if processes := await self._processes(name, known):
            return processes
        if any(name in {record.name, record.agent_id} for record in known):
            raise NotFound(f"{name!r} does not register, so it cannot be drained, disabled or enabled. {REMEDY_OF_MQ}")
        raise _not_found(name, known)

    async def _processes(self, name: str, known: Iterable[AgentRecord]) -> list[AgentRecord]:
        """Return the registered agents of a name or id, if any."""
        of_name = [record for record in known if record.kind == "agent" and name in {record.name, record.agent_id}]
        return list((await self._stored(name) | {record.agent_id: record for record in of_name}).values())

    async def _stored(self, name: str) -> dict[str, AgentRecord]:
        """Return the agents of a name or id, by id, from the log.

        The projection may lack an agent that registered a moment ago.
        """
        if not agent.is_agent_name(name):
            return {}
        filters = [subjects.agent_events(name)]
        if agent.is_agent_id(name):
            filters.append(subjects.agent_events(agent_id=name))
        of_agent: dict[tuple[str, str], list[Recorded[Message]]] = {}
        for each in filters:
            for recorded in await self._log.load(each):
                fact = recorded.message
                if isinstance(fact, AgentFact) and fact.agent_id != OF_THE_NAME:
                    of_agent.setdefault((fact.name, fact.agent_id), []).append(recorded)
        states = {key: agent.fold(facts) for key, facts in of_agent.items()}
        return {
            agent_id: AgentRecord(name=of, agent_id=agent_id, state=state.state(enabled=True))
            for (of, agent_id), state in states.items()
            if state.registered is not None and state.end not in {"ended", "forgotten"}
        }

    async def _drain(self, record: AgentRecord, by: Actor | None, reason: str | None, take: Take) -> bool:
        async def facts(stored: Sequence[Recorded[Message]]) -> list[AgentFact]:
            return agent.drain(agent.fold(stored), record.name, record.agent_id, by=by, reason=reason)

        return bool(await decide(self._log, subjects.agent(record.name, record.agent_id), facts, take=take))


REMEDY_OF_MQ: Final = "It takes tasks from hip-62's queue: stop it, or pause its queue with `tocsin queues pause`."
"""What stops an executor of hip-62's queue."""


def _newest_switch(stored: Sequence[Recorded[Message]]) -> AgentSwitched | None:
    newest = newest_of(stored, AgentSwitched)
    return None if newest is None else newest.message


def _not_found(name: str, known: Iterable[AgentRecord]) -> NotFound:
    nearest = difflib.get_close_matches(name, {record.name for record in known}, n=1)
    hint = f"Did you mean {nearest[0]!r}?" if nearest else "`tocsin agents list` shows all agents."
    return NotFound(f"No agent has the name or id {name!r}. {hint}")


async def backlogs(projections: Projections) -> dict[str, QueueBacklog]:
    """Return the backlogs by queue, as the leading matcher wrote them a moment ago."""
    by_queue: dict[str, QueueBacklog] = {}
    for body in (await projections.entries(Bucket.QUEUES, BACKLOG_KEYS)).values():
        try:
            backlog = QueueBacklog.model_validate_json(body)
        except ValidationError:
            continue  # of a newer version
        by_queue[backlog.queue] = backlog
    return by_queue


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


async def change_grants(  # noqa: PLR0913 - the fields of a grant
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
    _check_grant(name, queues, functions, shards)
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


def _check_grant(name: str, queues: Sequence[str], functions: Sequence[str], shards: Sequence[str]) -> None:
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
