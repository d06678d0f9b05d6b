"""Decisions on jobs with a partition: one execution on each shard, begun once.

The event `fanned-out` is stored first, under the id of the only execution that a job without a partition would have. It lists the
shards. An execution on a single shard needs no such event, because its plan has the shard.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeAlias

from .. import subjects
from ..domain import shard_map
from ..domain.definition import JobDefinition
from ..domain.events import Admitted, CronTriggered, FannedOut, Planned, PublicEvent, Recorded, Skipped
from ..domain.execution import Execution, Status
from ..domain.fan_out import execution_ids, fanned_out, on_each_shard, on_shard
from .daily_quotas import within_quota
from .kinds import DEFINITION, NEWEST_SHARD_MAP, PUBLIC_EVENT, RANGE, SHARD_MAP, execution_state
from .locks import Beginning, begin
from .public_events import required_event, runs_before
from .step import DONE, Events, Ref, States, Step, Then, again

BEGUN_AT_ONCE: Final = 64
BYTES_AT_ONCE: Final = 262_144
"""Executions that begin in one part of a decision, and the bytes of their plans: each has a copy."""
ANNOUNCED_AT_ONCE: Final = 64

Make: TypeAlias = Callable[[JobDefinition, int], Planned | Admitted]
"""Makes the only execution of an occurrence or trigger from a definition and its sequence."""


def begin_divided(
    make: Make, definition: JobDefinition, sequence: int, at: Beginning, *, version: int | None = None
) -> Step:
    """Begin the executions of an occurrence or trigger of a job with a partition.

    `version`: the version of the shard map that the input names; None: it names none, and the newest counts.
    """
    first, partition, states = make(definition, sequence), definition.partition, at.states
    ref = execution_state(first.job, first.execution_id)
    state = states(ref)
    if partition is None or state.status not in {Status.UNKNOWN, Status.FANNED_OUT}:
        return begin(first, at)
    if state.is_fanned_out:
        return finish_fan_out(make, ref, at)
    version, shards = states(NEWEST_SHARD_MAP(None)) if version is None else (version, states(SHARD_MAP(version)))
    chosen = shard_map.resolve(partition, shards, first.plan.input)
    limited = within_quota(first, states, at.now, len(chosen)) if chosen else Skipped.of(first, "no_shard")
    if isinstance(limited, Skipped):
        return begin(limited, at)
    if not partition.has_one:
        return again(Events(ref, (fanned_out(first, version, chosen),)))
    return begin(on_shard(first, chosen[0]), at)


def finish_fan_out(make: Make, ref: Ref[Execution], at: Beginning) -> Step:
    """Begin the executions that `fanned-out` lists and that have not begun, then announce them."""
    states, decided = at.states, at.states(ref).decided
    if decided is None or not isinstance(decided.message, FannedOut):
        return DONE
    fact, job = decided.message, decided.message.job
    refs = {shard: execution_state(job, execution_id) for shard, execution_id in execution_ids(fact).items()}
    missing = [shard for shard, each in refs.items() if states(each).status is Status.UNKNOWN]
    if not missing:
        return _announce(Recorded(fact, decided.subject, decided.sequence, decided.time), states, at.now)
    definition = states(DEFINITION((job, fact.definition)))
    first = make(definition, fact.definition)
    number = max(1, min(BEGUN_AT_ONCE, BYTES_AT_ONCE // len(first.encode())))
    requests = [on_each_shard(first, shard, definition.jitter) for shard in missing[:number]]
    steps = [begin(request, at) for request in requests]
    return Step(
        tuple(change for step in steps for change in step.changes),
        Then.AGAIN,
        signals=tuple(signal for step in steps for signal in step.signals),
    )


def _announce(fanned: Recorded[FannedOut], states: States, now: datetime) -> Step:
    """Announce the executions that were admitted and are not announced yet."""
    fact = fanned.message
    ref = PUBLIC_EVENT(subjects.public_event("triggered", fact.job))
    newest, last = states(ref), states.at(ref)
    announced = set[str]()
    if last > fanned.sequence:
        events = states(RANGE((ref.key, fanned.sequence)))
        announced = {event.message.data.job_id for event in events if isinstance(event.message, CronTriggered)}
    count = runs_before(newest, fact.definition, states)
    missing = list[PublicEvent]()
    for execution_id in execution_ids(fact).values():
        if len(missing) == ANNOUNCED_AT_ONCE:
            break
        decided = states(execution_state(fact.job, execution_id)).decided
        if execution_id in announced or decided is None or not isinstance(decided.message, Admitted):
            continue
        required = required_event(decided.message, sequence=decided.sequence, now=now)
        if required is not None:
            missing.append(required.make(count + len(missing) + 1))
    return again(Events(ref, tuple(missing))) if missing else DONE
