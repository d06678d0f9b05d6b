"""Decisions of operators in one scope of the ledger, and documents that these make.

Each version of a document is one event with the whole declaration. The documents are the shard map, the namespaces, the policy,
the silences, and the grants of a name. The sequence of an event is its version.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from typing_extensions import override

from .. import subjects
from ..domain import policy
from ..domain.events import Actor, Message, PolicyDefined, Recorded, newest_of
from ..domain.policy import NO_POLICY, Policy
from ..ports import Clock, EventLog, LogUnavailable, OutdatedState, SequenceConflict

TRIES: Final = 5
"""Tries to append a decision while other operators or stages decide in the scope."""

Take: TypeAlias = Callable[[Sequence[Message]], Awaitable[None]]
"""Takes the room for events that are about to be stored, or refuses them."""


async def unlimited(_: Sequence[Message]) -> None:
    """Take no room: there is no limit."""


F = TypeVar("F", bound=Message)
Decide: TypeAlias = Callable[[Sequence[Recorded[Message]]], Awaitable[Sequence[F]]]


async def decide(log: EventLog, scope: str, decision: Decide[F], *, take: Take = unlimited) -> Sequence[F]:
    """Decide by the events of a scope; store and return the event, if any.

    `take` takes the room for the event.

    Raises:
        LogUnavailable: the log did not answer, or other writers were faster each time.
    """
    for _ in range(TRIES):
        stored = await log.load(scope)
        facts = await decision(stored)
        if facts:
            await take(facts)
            take = unlimited
        try:
            for fact in facts:
                await log.append(fact, expect=stored[-1].sequence if stored else 0)
        except OutdatedState:
            continue
        return facts
    raise LogUnavailable(f"{scope}: other writers changed it {TRIES} times")


RECENT_S: Final = 1.0
"""The age up to which `Recent` returns a version that was read before."""
_SIGNATURE: Final = ("previous", "by", "reason")
"""The fields of an event that are no part of the declaration."""

E = TypeVar("E", bound=Message)
V = TypeVar("V")


class Document(Generic[E, V]):
    """A document, with the event `E` and the view `V` of a version."""

    kind: type[E]
    scope: str
    """The subject of its events."""
    draft: Callable[..., E]
    """Returns the event of a declaration, without a signature, if the declaration is valid."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def view(self, newest: Recorded[E] | None) -> V:
        """Return the version of an event; None: there is no version."""
        raise NotImplementedError

    async def newest(self) -> V:
        """Return the newest version."""
        return self.view(newest_of(await self._log.load(self.scope), self.kind))

    async def replace(
        self,
        edit: Callable[[V], E | None],
        *,
        by: Actor | None = None,
        reason: str | None = None,
        take: Take = unlimited,
    ) -> E | None:
        """Replace the newest version by the draft that `edit` returns; return the stored event.

        `edit` may raise its own error, and returns None to change nothing. `take` takes the room for the event.
        """

        async def facts(stored: Sequence[Recorded[Message]]) -> list[E]:
            newest = newest_of(stored, self.kind)
            draft = edit(self.view(newest))
            if draft is None or (newest is not None and _signed_like(newest.message, draft) == newest.message):
                return []
            previous = {"previous": 0 if newest is None else newest.sequence} if hasattr(draft, "previous") else {}
            return [draft.changed(by=by, reason=reason, **previous)]

        return next(iter(await decide(self._log, self.scope, facts, take=take)), None)

    async def apply(
        self,
        wanted: Iterable[Any],
        *,
        check: Callable[[V], None] = lambda newest: None,  # noqa: ARG005 - any version will do
        by: Actor | None = None,
        reason: str | None = None,
    ) -> bool:
        """Replace the whole declaration; return whether that changed anything.

        `check` raises its own error if the newest version must not be replaced.

        Raises:
            WrongShardMap, WrongNamespaces: a part is not valid, or there are too many.
        """
        draft = self.draft(wanted)

        def edit(newest: V) -> E | None:
            check(newest)
            return None if newest == self.view(None) and draft == self.draft(()) else draft

        return await self.replace(edit, by=by, reason=reason) is not None


def _signed_like(known: Message, draft: E) -> E:
    return draft.changed(**{name: getattr(known, name) for name in _SIGNATURE if hasattr(known, name)})


class Recent(Generic[V]):
    """The newest version of a document a second ago, for frequent requests."""

    def __init__(self, document: Document[Any, V], clock: Clock) -> None:
        self._document = document
        self._clock = clock
        self._read: tuple[float, V] | None = None

    async def newest(self) -> V:
        """Return the version; see `Document.newest`."""
        now = self._clock.monotonic()
        if self._read is None or now - self._read[0] > RECENT_S:
            self._read = now, await self._document.newest()
        return self._read[1]


class Versioned(Protocol):
    """A declaration; 0: none was made."""

    @property
    def version(self) -> int:
        """The sequence of its event."""


def has_version(what: str, expected: int) -> Callable[[Versioned], None]:
    """Return a check that raises `SequenceConflict` for other versions.

    `what` has changed then, such as `the shard map`. `expected`: 0: none must have been declared.
    """

    def check(newest: Versioned) -> None:
        if newest.version != expected:
            raise SequenceConflict(
                f"{what} changed: the expected version is {expected}, and the newest is {newest.version}. "
                "Another operator was faster; read it again."
            )

    return check


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """The policy with its version, and who defined it."""

    policy: Policy = NO_POLICY
    version: int = 0
    """The sequence of its event; 0: no policy was defined."""
    since: datetime | None = None
    by: str | None = None
    """The identity of the administrator."""
    reason: str | None = None


class Policies(Document[PolicyDefined, PolicyVersion]):
    """The scheduler policy of an installation."""

    kind, scope = PolicyDefined, subjects.policy()

    @override
    def view(self, newest: Recorded[PolicyDefined] | None) -> PolicyVersion:
        if newest is None:
            return PolicyVersion()
        fact = newest.message
        by = fact.by.full_name if fact.by else None
        return PolicyVersion(policy.policy_of(fact), newest.sequence, newest.time, by, fact.reason)

    async def define(
        self, wanted: Callable[[PolicyVersion], Policy], *, by: Actor | None = None, reason: str | None = None
    ) -> bool:
        """Define the policy that `wanted` returns for the current one; return whether that changed anything."""

        def edit(current: PolicyVersion) -> PolicyDefined | None:
            after = wanted(current)
            return None if after == current.policy else PolicyDefined(**after.model_dump())

        return await self.replace(edit, by=by, reason=reason) is not None

    async def change(
        self, changes: Mapping[str, object], *, by: Actor | None = None, reason: str | None = None
    ) -> bool:
        """Change some fields of the policy; return whether that changed anything.

        Raises:
            PolicyError: a field is unknown, or a value is invalid.
        """
        return await self.define(lambda current: policy.changed(current.policy, changes), by=by, reason=reason)
