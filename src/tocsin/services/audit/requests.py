"""Requests and executions (I1, I2, I3): each request is answered once, and nothing else runs.

Unique keys (I1 to I4): one job has a key, and begins with it.

Memory: requests without an execution, and executions without a known request. Streams may therefore come in any order; memory
is least if they come side by side. For fan-outs: the versions of the shard map, the occurrences of divided jobs that have not begun, and
the fan-outs with a `due` or a map that is not taken yet. For unique keys: the open executions that have a key, and the unique requests that
nothing has become of.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from ...domain import execution_plan, ids
from ...domain.events import (
    LOCK_SKIPS,
    OPEN_STATES,
    Admitted,
    Cancelled,
    Completed,
    Due,
    Enqueued,
    ExecutionFact,
    Failed,
    FannedOut,
    KeyTaken,
    Message,
    Passed,
    Planned,
    PoisonMessage,
    Recorded,
    Replayed,
    Requested,
    ShardsDefined,
    ShardState,
    Skipped,
    Trigger,
)
from ...domain.fan_out import execution_ids
from ...domain.uniqueness import MAX_HOLDERS
from ...subjects import ENQUEUED, PUBLIC_TRIGGERS, REPLAYS, TRIGGERS, is_trigger, job_of, publisher_of
from . import check
from .check import Check, Debt, Key, Proof, Taken, on

Request: TypeAlias = tuple[str, str, int]
"""A request: the durable that consumes it, its subject and its sequence.

The subject names the job, because partitions count their sequences separately.
"""


class Origin(NamedTuple):
    """The origin of an execution."""

    proof: Proof
    request: Request | None = None


class Requests(Check):
    """Pairs each instant and each trigger with its execution."""

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._awaited: dict[Key, Origin] = {}
        """Requested executions that the log does not contain yet."""
        self._unrequested: dict[Key, Origin] = {}
        """Executions without a request so far."""
        self._requests: dict[Request, Key] = {}
        self._refused: set[Request] = set()
        self._undecided: set[Key] = set()
        """Planned executions whose lock is not decided on; the others are admitted at once."""
        self._repeatable: set[Key] = set()
        """Executions that several requests may name: of backfills, and of keys."""
        self._enqueued_keys: set[Key] = set()
        self._inputs: set[tuple[str, str]] = set()
        """Dead letters of messages: a replay publishes the message again, and starts no execution."""

    @on(Due)
    def _due(self, recorded: Recorded[Due]) -> None:
        due = recorded.message
        self._await_execution((due.job, ids.occurrence_id(due.job, due.scheduled_time)), recorded)
        if due.dst_skip:
            self._await_execution((due.job, ids.passed_id(due.job, due.scheduled_time)), recorded)

    @on(Passed)
    def _passed(self, recorded: Recorded[Passed]) -> None:
        fact = recorded.message
        for at in fact.scheduled_times:
            self._await_execution((fact.job, ids.passed_id(fact.job, at)), recorded)

    @on(Trigger)
    def _trigger(self, recorded: Recorded[Trigger]) -> None:
        job, publisher = job_of(recorded.subject), publisher_of(recorded.subject)
        key = job, execution_plan.execution_id_of(recorded, job, publisher)
        if recorded.message.idempotency_key is not None or recorded.message_id == key[1]:
            if key in self._repeatable:
                return  # it requests the same execution a second time
            self._repeatable.add(key)
        durable = TRIGGERS if publisher is None else PUBLIC_TRIGGERS
        self._request((durable, recorded.subject, recorded.sequence), key, recorded)

    @on(Enqueued)
    def _enqueued(self, recorded: Recorded[Enqueued]) -> None:
        request = recorded.message
        key = request.definition.name, request.execution_id
        if key not in self._enqueued_keys:  # a repeated request under the same id is the same request
            self._enqueued_keys.add(key)
            self._request((ENQUEUED, recorded.subject, recorded.sequence), key, recorded)

    @on(Replayed)
    def _replayed(self, recorded: Recorded[Replayed]) -> None:
        fact = recorded.message
        if (fact.job, fact.id) not in self._inputs:
            key = fact.job, execution_plan.replay_id_of(fact, recorded.time)
            self._request((REPLAYS, recorded.subject, recorded.sequence), key, recorded)

    def _request(self, request: Request, key: Key, recorded: Recorded[Message]) -> None:
        if request in self._refused:
            self._refused.discard(request)
        else:
            self._requests[request] = key
            self._await_execution(key, recorded, request)

    @on(PoisonMessage)
    def _refusal(self, recorded: Recorded[PoisonMessage]) -> None:
        fact = recorded.message
        if not is_trigger(fact.subject):
            self._inputs.add((fact.job, fact.id))
        if fact.durable in {TRIGGERS, PUBLIC_TRIGGERS, REPLAYS}:
            request = (fact.durable, fact.subject, fact.sequence)
            key = self._requests.pop(request, None)
            if key is None:
                self._refused.add(request)
            else:
                self._awaited.pop(key, None)

    def _await_execution(self, key: Key, recorded: Recorded[Message], request: Request | None = None) -> None:
        if self._unrequested.pop(key, None) is None:
            self._awaited[key] = Origin(Proof.of(recorded), request)
        elif request is not None:
            self._requests.pop(request, None)

    def _begun(self, recorded: Recorded[Requested]) -> Taken:
        fact = recorded.message
        occurrence, shard = fact.plan.occurrence, fact.plan.shard
        if occurrence is not None and fact.execution_id != ids.shard_execution_id(occurrence, shard or ""):
            reason = f"its id is not that of shard {shard} of {occurrence}"
            yield check.violation("I1", check.entity(fact), reason, recorded)
        stands_for = occurrence or fact.execution_id
        if fact.trigger == "cron" and stands_for != ids.occurrence_id(fact.job, fact.scheduled_time):
            reason = f"{fact.scheduled_time.isoformat()} has an execution of its own, and this is another"
            yield check.violation("I1", check.entity(fact), reason, recorded)
        self._answer(recorded)

    @on(FannedOut)
    def _fanned_out(self, recorded: Recorded[FannedOut]) -> None:
        """Await an execution on each shard; the fan-out itself answers the request."""
        fact = recorded.message
        self._answer(recorded)
        for execution_id in execution_ids(fact).values():
            self._await_execution((fact.job, execution_id), recorded)

    @on(Planned)
    def _planned(self, recorded: Recorded[Planned]) -> Taken:
        self._undecided.add(check.key_of(recorded.message))
        yield from self._begun(recorded)

    @on(Admitted)
    def _admitted(self, recorded: Recorded[Admitted]) -> Taken:
        if check.key_of(recorded.message) in self._undecided:
            self._undecided.discard(check.key_of(recorded.message))
        else:
            yield from self._begun(recorded)

    @on(Cancelled, Failed)
    def _ended(self, recorded: Recorded[Cancelled | Failed]) -> None:
        self._undecided.discard(check.key_of(recorded.message))

    @on(Skipped)
    def _skipped(self, recorded: Recorded[Skipped]) -> None:
        self._undecided.discard(check.key_of(recorded.message))
        # The dead letter of a refused trigger is its answer.
        if recorded.message.refusal is None and recorded.message.reason not in LOCK_SKIPS:
            self._answer(recorded)

    def _answer(self, recorded: Recorded[ExecutionFact]) -> None:
        fact = recorded.message
        key = check.key_of(fact)
        request = self._awaited.pop(key, None)
        if request is None:
            self._unrequested[key] = Origin(Proof.of(recorded))
        elif request.request is not None:
            self._requests.pop(request.request, None)

    def debts(self) -> Iterator[Debt]:
        for (job, execution_id), request in self._awaited.items():
            if self._since is None or request.proof.time >= self._since:
                reason = f"nothing has become of {request.proof.subject} yet: {execution_id} is missing"
                yield Debt("I2", check.job(job), reason, request.proof.time, facts=(request.proof,))
        for (job, execution_id), execution in self._unrequested.items():
            if self._since is None:
                entity = check.execution(job, execution_id)
                yield Debt("I3", entity, "it was not requested", execution.proof.time, facts=(execution.proof,))


class FanOuts(Check):
    """Compares each fan-out with the map that its `due` names."""

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._maps: dict[int, frozenset[str]] = {}
        """The active shards of each version."""
        self._newest = 0
        self._due: dict[Key, Recorded[Due]] = {}
        self._undue: dict[Key, Recorded[FannedOut]] = {}
        self._unmapped: dict[int, list[Recorded[FannedOut]]] = {}

    @on(ShardsDefined)
    def _defined(self, recorded: Recorded[ShardsDefined]) -> Taken:
        fact = recorded.message
        if self._is_whole and fact.previous != self._newest:
            reason = f"it says that it follows map {fact.previous}, and it follows {self._newest}"
            yield check.violation("I2", "shard map", reason, recorded)
        self._newest = recorded.sequence
        self._maps[recorded.sequence] = frozenset(
            shard.shard_id for shard in fact.shards if shard.state is ShardState.ACTIVE
        )
        for fanned in self._unmapped.pop(recorded.sequence, ()):
            yield from self._on_the_map(fanned)

    @on(Due)
    def _came_due(self, recorded: Recorded[Due]) -> Taken:
        due = recorded.message
        if not due.shards:
            return
        key = (due.job, ids.occurrence_id(due.job, due.scheduled_time))
        fanned = self._undue.pop(key, None)
        if fanned is None:
            self._due[key] = recorded
        else:
            yield from _compared(recorded, fanned)

    @on(FannedOut)
    def _fanned_out(self, recorded: Recorded[FannedOut]) -> Taken:
        fact = recorded.message
        if not fact.shards or len(set(fact.shards)) != len(fact.shards):
            yield check.violation("I2", check.entity(fact), "it lists no shard, or a shard twice", recorded)
        if fact.trigger == "cron":
            due = self._due.pop(check.key_of(fact), None)
            if due is None:
                self._undue[check.key_of(fact)] = recorded
            else:
                yield from _compared(due, recorded)
        if fact.map in self._maps:
            yield from self._on_the_map(recorded)
        else:
            self._unmapped.setdefault(fact.map, []).append(recorded)

    def _on_the_map(self, recorded: Recorded[FannedOut]) -> Taken:
        fact = recorded.message
        if others := sorted(set(fact.shards) - self._maps[fact.map]):
            reason = f"it runs on {', '.join(others)}, which map {fact.map} does not have as active"
            yield check.violation("I2", check.entity(fact), reason, recorded)

    @on(Planned, Admitted, Skipped)
    def _begun(self, recorded: Recorded[Requested | Skipped]) -> None:
        self._due.pop(check.key_of(recorded.message), None)


def _compared(due: Recorded[Due], fanned: Recorded[FannedOut]) -> Taken:
    if due.message.shards != fanned.message.map:
        reason = f"it goes by shard map {fanned.message.map}, and its `due` names {due.message.shards}"
        yield check.violation("I2", check.entity(fanned.message), reason, due, fanned)


_ALWAYS_OPEN: Final = frozenset(OPEN_STATES) - {"pending"}
"""The states of open jobs. No job is `pending`."""


class UniqueKeys(Check):
    """Judges which execution takes a key, and when."""

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._holders: dict[tuple[str, str], dict[str, Recorded[KeyTaken]]] = {}
        """The open executions with a key, by job and key."""
        self._key_of: dict[Key, tuple[str, str]] = {}
        self._replaced: dict[Key, Proof] = {}
        """Open executions that another replaced."""
        self._requests: dict[Key, Proof] = {}
        """Unique requests of executions without a key yet."""
        self._decided: set[Key] = set()
        """Executions with a key, of requests that did not come yet."""

    def debts(self) -> Iterator[Debt]:
        for (job, execution_id), proof in self._replaced.items():
            entity = check.execution(job, execution_id)
            yield Debt("I1", entity, "another job replaced it, and it is open", proof.time, facts=(proof,))
        for (job, execution_id), proof in self._requests.items():
            if self._since is None or proof.time >= self._since:
                entity = check.execution(job, execution_id)
                yield Debt("I2", entity, "it is unique, and did not take its key", proof.time, facts=(proof,))

    @on(Enqueued)
    def _enqueued(self, recorded: Recorded[Enqueued]) -> None:
        request = recorded.message
        if request.unique is not None:
            key = request.definition.name, request.execution_id
            if key in self._decided:
                self._decided.discard(key)
            else:
                self._requests[key] = Proof.of(recorded)

    @on(KeyTaken)
    def _taken(self, recorded: Recorded[KeyTaken]) -> Taken:
        fact = recorded.message
        holders = self._holders.setdefault((fact.job, fact.key), {})
        named = {other.execution_id for other in fact.others}
        entity = check.entity(fact)
        if fact.execution_id in holders:
            yield check.violation("I4", entity, "it took its key twice", holders[fact.execution_id], recorded)
        for execution_id, earlier in holders.items():
            if self._excludes(fact, earlier.message) and execution_id not in fact.replaces:
                yield check.violation("I1", entity, f"it took the unique key of {execution_id}", earlier, recorded)
            elif execution_id not in named and len(named) < MAX_HOLDERS - 1:
                yield check.violation(
                    "I1", entity, f"it took a key without regard to {execution_id}", earlier, recorded
                )
        if self._is_whole and (unknown := set(fact.replaces) - named):
            yield check.violation("I3", entity, f"it replaces {', '.join(sorted(unknown))} without the key", recorded)
        for execution_id in fact.replaces:
            if execution_id in holders:
                self._replaced[fact.job, execution_id] = Proof.of(recorded)
        holders[fact.execution_id] = recorded
        self._key_of[check.key_of(fact)] = fact.job, fact.key
        self._decide(check.key_of(fact))

    def _excludes(self, fact: KeyTaken, earlier: KeyTaken) -> bool:
        """Return whether a job was a duplicate of an open one in any state."""
        is_past = fact.period is not None and fact.enqueued_at - earlier.enqueued_at >= timedelta(seconds=fact.period)
        return _ALWAYS_OPEN.issubset(fact.states) and not is_past

    @on(Completed, Failed, Cancelled, Skipped)
    def _ended(self, recorded: Recorded[ExecutionFact]) -> None:
        fact = recorded.message
        if isinstance(fact, Skipped) and fact.reason == "duplicate" and check.key_of(fact) not in self._key_of:
            self._decide(check.key_of(fact))
        self._replaced.pop(check.key_of(fact), None)
        if (key := self._key_of.pop(check.key_of(fact), None)) is not None:
            del self._holders[key][fact.execution_id]
            if not self._holders[key]:
                del self._holders[key]

    def _decide(self, key: Key) -> None:
        if self._requests.pop(key, None) is None:
            self._decided.add(key)
