"""Operations of a user on the parts that all jobs of an installation share."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

from ..domain.agent import AgentRecord
from ..domain.events import Actor, Message, Namespace, Recorded, Shard, Silence
from ..domain.namespaces import checked
from ..ports import Clock, EventLog, History, Projections, StoredLog
from ..ports.queries import NotificationQuery, Page
from ..settings import Settings
from . import tail
from .agents import AgentRegistry, GrantAnswer, GrantVerb, change_grants
from .definition_settings import DefinitionSettings, UnheardStreams
from .documents import has_version
from .jobs import Registry
from .namespaces import NamespaceChange, NamespaceDetails, NamespaceMap, Namespaces, changes, details
from .notifications import NotificationRow, Silences, notifications
from .policies import PolicyVersion
from .queue_decisions import PurgeAnswer, QueueDecisions
from .shards import ShardMap, ShardMaps, owners_of, with_owners

if TYPE_CHECKING:  # a command that lists jobs imports neither
    from .health import Status
    from .queues import ListJobs, QueueDetails

OpenHistory: TypeAlias = Callable[[], AbstractAsyncContextManager[History]]


class InstallationOperator:
    """Operations on queues, agents, shards, namespaces, the policy and notifications.

    Each raises what its service raises: NotFound for an unknown name or id, SequenceConflict for another version than the
    expected one, and WrongShardMap, WrongNamespaces, DefinitionError or OperationError for a refused request.
    """

    def __init__(  # noqa: PLR0913 - each is a part of the installation
        self,
        log: EventLog,
        stored: StoredLog,
        projections: Projections,
        clock: Clock,
        *,
        history: OpenHistory,
        queues: "Callable[[ListJobs], Awaitable[tuple[QueueDetails, ...]]]",
        status: "Callable[[], Awaitable[Status]]",
        settings: Settings,
        unheard_streams: Callable[[], Awaitable[UnheardStreams]] | None = None,
        by: Actor | None = None,
    ) -> None:
        """Operate on an installation.

        `history` opens the history at its first use, `queues` reads the queues, `status` the state of all parts,
        `unheard_streams` the streams that no trigger can hear, and `by` is recorded with each change.
        """
        self._projections = projections
        self._settings = settings
        self._log = log
        self._stored = stored
        self._clock = clock
        self._history = history
        self._status = status
        self._unheard_streams = unheard_streams
        self._by = by
        self._registry = Registry(log, projections, clock, bridged=settings.bridged_queues)
        self._queues = queues
        self._agents = AgentRegistry(log, projections)

    async def shards(self) -> ShardMap:
        """Return the newest shard map."""
        newest = await ShardMaps(self._log).newest()
        return with_owners(newest, await owners_of(self._log), await self._agents.agents())

    async def apply_shards(self, shards: Sequence[Shard], *, expected: int, reason: str | None = None) -> bool:
        """Replace the shard map of an expected version; return whether that changed anything."""
        check = has_version("the shard map", expected)
        return await ShardMaps(self._log).apply(shards, check=check, by=self._by, reason=reason)

    async def namespaces(self) -> NamespaceMap:
        """Return the declared namespaces."""
        return await Namespaces(self._log).newest()

    async def namespace(self, name: str) -> NamespaceDetails:
        """Return a declared namespace, with its contents and its use of today."""
        declared = (await Namespaces(self._log).newest()).named(name)
        definitions = [job.definition for job in await self._registry.jobs()]
        return await details(declared, definitions, self._projections, self._clock)

    async def plan_namespaces(self, namespaces: Sequence[Namespace]) -> tuple[NamespaceChange, ...]:
        """Return what a declaration of all namespaces would change."""
        after, newest = checked(namespaces), await self.namespaces()
        return changes(newest.namespaces, after, [job.definition for job in await self._registry.jobs()])

    async def apply_namespaces(
        self, namespaces: Sequence[Namespace], *, expected: int, reason: str | None = None
    ) -> bool:
        """Replace the declarations of an expected version; return whether that changed anything."""
        check = has_version("the declaration of namespaces", expected)
        return await Namespaces(self._log).apply(namespaces, check=check, by=self._by, reason=reason)

    async def agents(self, name: str | None = None) -> tuple[AgentRecord, ...]:
        """Return all agents, or the agents of a name or id."""
        return await self._agents.agents(name)

    async def drain_agents(self, name: str, *, reason: str | None = None) -> tuple[AgentRecord, ...]:
        """Drain the agents of a name, or one process by its id.

        Return those that began to drain.
        """
        return await self._agents.drain(name, by=self._by, reason=reason)

    async def switch_agents(self, name: str, *, enabled: bool, reason: str | None = None) -> bool:
        """Enable or disable all agents of a name; return whether that changed anything."""
        return await self._agents.switch(name, enabled=enabled, by=self._by, reason=reason)

    async def grant_agents(
        self,
        verb: GrantVerb,
        name: str,
        queues: Sequence[str],
        functions: Sequence[str],
        *,
        shards: Sequence[str] = (),
        reason: str | None = None,
    ) -> GrantAnswer:
        """Add functions of queues, and shards, to the grants of a name, or remove them.

        `change_grants` has the rules.
        """
        return await change_grants(self._log, verb, name, queues, functions, shards=shards, by=self._by, reason=reason)

    async def policy(self) -> PolicyVersion:
        """Return the scheduler policy."""
        return await self._registry.policies.newest()

    async def change_policy(self, changes: Mapping[str, object], *, reason: str | None = None) -> bool:
        """Change fields of the scheduler policy; return whether that changed anything. None unsets a field."""
        return await self._registry.policies.change(changes, by=self._by, reason=reason)

    async def notifications(self, query: NotificationQuery) -> Page[NotificationRow]:
        """Return a page of notifications with their delivery, the newest first."""
        return await notifications(self._log, query)

    async def silences(self) -> tuple[Silence, ...]:
        """Return the silences of notifications in force, the oldest first."""
        return await self._silences().newest()

    async def start_silence(self, *, job: str | None, tag: str | None, seconds: float, reason: str) -> Silence:
        """Start a silence of a job, a tag or all jobs."""
        if job is not None:
            await self._registry.job(job)
        return await self._silences().start(job=job, tag=tag, seconds=seconds, reason=reason, by=self._by)

    async def end_silence(self, silence: str, *, reason: str | None = None) -> Silence:
        """End a silence; `silence`: its id."""
        return await self._silences().end(silence, reason=reason, by=self._by)

    def _silences(self) -> Silences:
        return Silences(self._log, self._clock)

    async def queues(self) -> "tuple[QueueDetails, ...]":
        """Return all queues by name, with the jobs that the caller sees."""
        return await self._queues(self._registry.jobs)

    async def switch_queue(self, queue: str, *, paused: bool, reason: str | None = None) -> bool:
        """Pause or resume a queue; return whether that changed anything."""
        from .queues import find  # noqa: PLC0415 - see above

        known = find(queue, await self.queues())
        return await self._decisions().switch(known.name, paused=paused, reason=reason)

    async def purge_queue(self, queue: str, *, reason: str | None = None, dry_run: bool = False) -> PurgeAnswer:
        """Cancel the executions whose tasks wait in a queue now.

        `dry_run`: only say how many wait.
        """
        from .queues import find, purge  # noqa: PLC0415 - see above

        return await purge(self._decisions(), find(queue, await self.queues()), reason=reason, dry_run=dry_run)

    def _decisions(self) -> QueueDecisions:
        return QueueDecisions(self._log, by=self._by, room=self._registry.room)

    async def status(self) -> Mapping[str, Any]:
        """Return the status of all parts, as `tocsin status -o json` prints it."""
        from .health.status import as_json  # noqa: PLC0415 - see above

        return as_json(await self._status())

    async def definition_settings(self) -> DefinitionSettings:
        """Return the names in the settings that definitions may refer to."""
        settings = DefinitionSettings.of(self._settings)
        return settings if self._unheard_streams is None else settings.without(await self._unheard_streams())

    async def follow(
        self, job: str | None = None, *, from_start: bool = False
    ) -> AsyncGenerator[Sequence[Recorded[Message]], None]:
        """Yield the facts of a job or of all jobs in batches, from now on.

        An empty batch comes first, and again after each gap: all facts stored after it follow, and facts stored before it may be missing.
        `from_start`: begin with the facts stored before.

        Raises:
            LogUnavailable: the log does not answer at the beginning.
        """
        after = {} if from_start else await tail.newest(self._log, job)
        yield ()
        async with aclosing(tail.follow(self._log, job, after=after)) as follower:
            async for recorded in follower:
                yield (recorded,)
