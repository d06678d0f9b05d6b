"""The scheduler policy, as administrators define it and services read it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from typing_extensions import override

from .. import subjects
from ..domain import policy
from ..domain.events import Actor, PolicyDefined, Recorded
from ..domain.policy import NO_POLICY, Policy
from .documents import Document


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
