"""The scheduler policy, as administrators define it and services read it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from .. import subjects
from ..domain import policy
from ..domain.events import Actor, Message, PolicyDefined, Recorded, newest_of
from ..domain.policy import NO_POLICY, Policy
from ..ports import Clock, EventLog
from .scope_decisions import decide

RECENT_S: Final = 1.0
"""The age up to which `recent` returns a policy that was read before."""


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


Change = Callable[[PolicyVersion], Policy]
"""Returns the wanted policy for the current one, or raises an error."""


class Policies:
    """The scheduler policy of an installation."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._recent: PolicyVersion | None = None
        self._read_at = 0.0

    async def newest(self) -> PolicyVersion:
        """Return the policy in force (see the function `newest`)."""
        return await newest(self._log)

    async def recent(self) -> PolicyVersion:
        """Return the policy in force at most a second ago, for frequent requests."""
        now = self._clock.monotonic()
        if self._recent is None or now - self._read_at > RECENT_S:
            self._recent, self._read_at = await self.newest(), now
        return self._recent

    async def define(self, wanted: Change, *, by: Actor | None = None, reason: str | None = None) -> bool:
        """Define the policy; return whether that changed anything.

        Raises:
            LogUnavailable: the log did not answer.
        """

        async def facts(stored: Sequence[Recorded[Message]]) -> list[PolicyDefined]:
            current = _newest(stored)
            return policy.define(current.policy, current.version, wanted(current), by=by, reason=reason)

        return bool(await decide(self._log, subjects.policy(), facts))

    async def change(
        self, changes: Mapping[str, object], *, by: Actor | None = None, reason: str | None = None
    ) -> bool:
        """Change some fields of the policy; return whether that changed anything.

        Raises:
            PolicyError: a field is unknown, or a value is invalid.
            LogUnavailable: the log did not answer.
        """
        return await self.define(lambda current: policy.changed(current.policy, changes), by=by, reason=reason)


async def newest(log: EventLog) -> PolicyVersion:
    """Return the policy in force.

    Raises:
        LogUnavailable: the log did not answer, or every replica that answers lags.
    """
    return _newest(await log.load(subjects.policy()))


def _newest(stored: Sequence[Recorded[Message]]) -> PolicyVersion:
    newest = newest_of(stored, PolicyDefined)
    if newest is None:
        return PolicyVersion()
    fact = newest.message
    by = fact.by.full_name if fact.by else None
    return PolicyVersion(policy.policy_of(fact), newest.sequence, newest.time, by, fact.reason)
