"""Owners of resources (I3, I4): their tasks are claimed in their names.

A shard without an owner is free: any worker claims its tasks. Executors outside, which take tasks from hip-62's queue, do not
register, so they claim tasks of any shard.

Memory: the newest owner of each resource, and the resource of each task of open executions that needs one.
"""

from datetime import datetime

from ...domain.events import (
    Advanced,
    Cancelled,
    Completed,
    Dispatched,
    Exhausted,
    Failed,
    OwnershipAssigned,
    Recorded,
    Released,
    RetryScheduled,
    Started,
)
from ...domain.ownership import shard_of, shard_resource
from . import check
from .check import Check, Key, Taken, on


class Ownership(Check):
    """Judges the claims of tasks that only the owner of a resource gets.

    Two matchers may lead for a moment, and one of them claims for an earlier owner. Such a claim must be released, and nothing
    may rest on it.
    """

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._owners: dict[str, Recorded[OwnershipAssigned]] = {}
        self._needed: dict[Key, dict[str, str]] = {}
        """The resource of each task, by execution and step."""
        self._outdated: dict[tuple[Key, str], Recorded[Started]] = {}
        """Claims for earlier owners, by execution and step."""

    @on(OwnershipAssigned)
    def _assigned(self, recorded: Recorded[OwnershipAssigned]) -> Taken:
        fact = recorded.message
        before = self._owners.get(fact.resource)
        if before is not None and (before.message.name, before.message.agent_id) == (fact.name, fact.agent_id):
            yield check.violation("I4", f"resource {fact.resource}", "it is assigned to its owner", before, recorded)
        if self._is_whole and (before is None) != (fact.reason == "vacant"):
            reason = f"it is assigned as `{fact.reason}`, and had {'no' if before is None else 'an'} owner"
            yield check.violation("I3", f"resource {fact.resource}", reason, recorded)
        self._owners[fact.resource] = recorded

    @on(Dispatched)
    def _dispatched(self, recorded: Recorded[Dispatched]) -> None:
        task = recorded.message
        resource = task.resource if task.shard is None else shard_resource(task.shard)
        if resource is not None:
            self._needed.setdefault(check.key_of(task), {})[task.step] = resource

    @on(Started)
    def _started(self, recorded: Recorded[Started]) -> Taken:
        claim = recorded.message
        resource = self._needed.get(check.key_of(claim), {}).get(claim.step)
        owner = None if resource is None else self._owners.get(resource)
        if resource is None or (owner is None and shard_of(resource) is not None):
            if claim.epoch is not None and self._is_whole:
                reason = (
                    f"epoch {claim.epoch} of {'no resource' if resource is None else f'{resource}, which has no owner'}"
                )
                yield check.violation("I3", check.entity(claim), reason, recorded)
            return
        if owner is None:
            if self._is_whole:
                yield check.violation("I3", check.entity(claim), f"{resource} had no owner", recorded)
            return
        if shard_of(resource) is not None and claim.agent is None and claim.lease is None:
            return  # an executor outside claims tasks of any shard
        if claim.epoch == owner.sequence:
            if (claim.worker, claim.agent) != (owner.message.name, owner.message.agent_id):
                reason = f"{claim.worker} claimed it, and {owner.message.name} owned {resource}"
                yield check.violation("I3", check.entity(claim), reason, owner, recorded)
        elif (claim.epoch or 0) > owner.sequence or (claim.epoch is None and shard_of(resource) is None):
            reason = f"it is claimed under epoch {claim.epoch}, and that of {resource} was {owner.sequence}"
            yield check.violation("I3", check.entity(claim), reason, owner, recorded)
        else:
            self._outdated[check.key_of(claim), claim.step] = recorded

    @on(Released)
    def _released(self, recorded: Recorded[Released]) -> None:
        self._outdated.pop((check.key_of(recorded.message), recorded.message.step), None)

    @on(Advanced, RetryScheduled, Exhausted)
    def _answered(self, recorded: Recorded[Advanced | RetryScheduled | Exhausted]) -> Taken:
        yield from self._rests(recorded, recorded.message.step)
        self._needed.get(check.key_of(recorded.message), {}).pop(recorded.message.step, None)

    @on(Completed, Failed)
    def _ended(self, recorded: Recorded[Completed | Failed]) -> Taken:
        if recorded.message.step is not None:
            yield from self._rests(recorded, recorded.message.step)
        self._forget(check.key_of(recorded.message))

    @on(Cancelled)
    def _cancelled(self, recorded: Recorded[Cancelled]) -> None:
        self._forget(check.key_of(recorded.message))

    def _rests(
        self, recorded: Recorded[Advanced | RetryScheduled | Exhausted | Completed | Failed], step: str
    ) -> Taken:
        claim = self._outdated.pop((check.key_of(recorded.message), step), None)
        if claim is not None:
            reason = f"its end rests on a claim under epoch {claim.message.epoch}, when another agent was the owner"
            yield check.violation("I3", check.entity(claim.message), reason, claim, recorded)

    def _forget(self, key: Key) -> None:
        for step in self._needed.pop(key, {}):
            self._outdated.pop((key, step), None)
