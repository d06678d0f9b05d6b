"""The workload: the jobs of users, their changes, and the behaviour of their handlers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID
from zlib import crc32

from pydantic import JsonValue

from tocsin.domain.definition import Concurrency, JobDefinition, JobDependency
from tocsin.domain.definition.partition import Partition
from tocsin.domain.events import Enqueued
from tocsin.testing import ManualClock
from tocsin.worker.context import Context, NonRetryableError

from .process import Process

FUNCTION: Final = "f"
QUEUES: Final = ("default", "heavy")
OUTSIDE: Final = "outside"
"""The queue whose tasks executors outside take, under leases."""
BRIDGED: Final = "bridged"
"""The queue whose tasks are handed over as hip-62 writes them."""
ASSIGNED: Final = "assigned"
"""The queue of jobs with a long time limit, in schedules that lose agents."""
NAMES: Final = ("a", "b.c", "d-e")

Verb: TypeAlias = Literal[
    "trigger", "pause", "resume", "edit", "delete", "define", "cancel", "enqueue", "replay", "resolve", "backfill"
]

_SCHEDULES: Final = ("*/3 * * * * *", "*/5 * * * * *", "*/7 * * * * *", "*/4 * * * * *", "@every 3s", "@every 5s", None)
_POLICIES: Final = ("skip", "allow", "cancel_previous", "enqueue")
_GRAPHS: Final[tuple[dict[str, tuple[str, ...]], ...]] = (
    {},
    {},
    {},
    {"one": (), "two": ("one",)},
    {"top": (), "left": ("top",), "right": ("top",), "end": ("left", "right")},
    {"one": (), "two": (), "both": ("one", "two")},
)


def definition(chance: Random, name: str) -> JobDefinition:
    """Some job."""
    graph = chance.choice(_GRAPHS)
    retry = {
        "max_attempts": chance.choice((1, 2, 3)),
        "initial_delay": chance.choice((0.3, 1.0)),
        "multiplier": chance.choice((1.0, 2.0)),
        "max_delay": chance.choice((1.5, 4.0)),
        "jitter": chance.choice((0.0, 0.1, 0.5)),
        "non_retryable_errors": chance.choice(((), ("ValueError",))),
    }
    fields: dict[str, Any] = {
        "name": name,
        "schedule": chance.choice(_SCHEDULES),
        "timeout": chance.choice((0.8, 2.0)),
        "retry": retry,
        "recovery": {"max_deaths": 1 + crc32(name.encode()) % 3},
        "overlap_policy": chance.choice(_POLICIES),
        "dead_letter": chance.random() < 0.6,
        "queue": chance.choice(QUEUES),
        "catch_up": chance.choice(("once", "skip", "all")),
        "catch_up_limit": chance.choice((1, 3)),
        "starting_deadline": chance.choice((None, None, 5.0)),
        "enabled": chance.random() < 0.93,
    }
    if graph:
        steps = [{"name": step, "function": FUNCTION, "depends_on": needs} for step, needs in graph.items()]
        chance.shuffle(steps)
        fields["dag"] = steps
    else:
        fields["function"] = FUNCTION
    return JobDefinition.model_validate(fields)


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a user at some second."""

    at: float
    verb: Verb
    job: str
    definition: JobDefinition | None = None
    message_id: str = ""
    times: int = 1
    """How often the same message is sent, or how many are meant."""
    what: str = ""
    """Which executions are meant: those that were `planned`, or `admitted`."""
    wish: Enqueued | None = None
    """What is to be run that is registered nowhere."""
    input: dict[str, JsonValue] | None = None
    """The input of a trigger."""


_VERBS: Final[tuple[Verb, ...]] = (
    *("trigger", "trigger", "trigger", "trigger", "pause", "resume", "resume"),
    *("edit", "edit", "delete", "define", "cancel", "cancel"),
)


def contended(
    chance: Random, until: float, *, policies: Sequence[str] = ("enqueue", "enqueue", "enqueue", "cancel_previous")
) -> list[Action]:
    """Jobs with a lock that get a few triggers within moments and then none, so that nothing looks at their locks again."""
    done, at = [], 1.5
    for number in range(_RUSHES):
        name = f"rush-{number}"
        job = definition(chance, name).model_copy(
            update={"schedule": None, "overlap_policy": chance.choice(policies), "enabled": True}
        )
        done.append(Action(at - 1.5, "define", name, job))
        done += _rush(chance, name, at)
        at += chance.uniform(0.1, 2.0) * (until - 2.0) / _RUSHES
    return sorted(done, key=lambda action: action.at)


def overlapping(chance: Random, until: float) -> list[Action]:
    """Jobs with a lock that are due more often than they can run, by schedule and by trigger."""
    done = []
    for name, policy in zip(NAMES, chance.sample(_LOCKED, k=2), strict=False):
        fields = {"schedule": "@every 1s", "overlap_policy": policy, "enabled": True, "timeout": 2.0}
        job = definition(chance, name).model_copy(update=fields)
        done.append(Action(chance.uniform(0.0, 1.0), "define", name, job))
        for number in range(chance.randint(1, 4)):
            at = chance.uniform(1.5, until)
            done.append(Action(at, "trigger", name, message_id=f"{name}-{number}"))
            if chance.random() < _CALLED_OFF:
                called_off = chance.choice(("planned", "admitted"))
                done.append(Action(at + chance.uniform(0.0, 0.6), "cancel", name, what=called_off))
        done.append(Action(until - chance.uniform(1.0, 3.0), "pause", name))
    return sorted(done, key=lambda action: action.at)


_LOCKED: Final = ("skip", "cancel_previous", "enqueue", "enqueue")
_RUSHES: Final = 12
_CALLED_OFF: Final = 0.5


def _rush(chance: Random, name: str, at: float) -> Iterator[Action]:
    """Trigger a job several times in quick succession, and perhaps cancel the running execution."""
    gap = chance.choice((0.01, 0.05, 0.2))
    for number in range(chance.randint(2, 5)):
        yield Action(at, "trigger", name, message_id=f"{name}-{at:.6f}-{number}")
        at += chance.uniform(0.0, 2.0) * gap
    if chance.random() < _CALLED_OFF:
        yield Action(
            at + chance.uniform(0.0, 0.6), "cancel", name, what=chance.choice(("planned", "admitted", "admitted"))
        )


def flooded(chance: Random, until: float) -> list[Action]:
    """Jobs with a lock that get a few triggers at the same moment as others, and soon afterwards cancellations."""
    done = []
    floods = [chance.uniform(1.5, until) for _ in range(_FLOODS)]
    for number in range(_RUSHES):
        name, at = f"flood-{number}", chance.choice(floods)
        fields = {
            "schedule": None,
            "overlap_policy": chance.choice(_LOCKED),
            "enabled": True,
            "timeout": 2.0,
            "max_waiting": 1 + number % 4,
        }
        job = definition(chance, name).model_copy(update=fields)
        done.append(Action(at - 1.5, "define", name, job))
        done += [Action(at, "trigger", name, message_id=f"{name}-{n}") for n in range(chance.randint(2, 5))]
        if chance.random() < _CALLED_OFF:
            called_off = chance.choice(("planned", "admitted"))
            at += chance.uniform(0.0, 0.4)
            done.append(Action(at, "cancel", name, times=chance.randint(1, 4), what=called_off))
    return sorted(done, key=lambda action: action.at)


_FLOODS: Final = 2


def registered(chance: Random, until: float) -> list[Action]:
    """Jobs that several users change within moments, and then leave alone."""
    done = []
    for number in range(_REGISTERED):
        name, at, gap = f"reg-{number}", chance.uniform(0.5, until - 1.0), chance.choice((0.02, 0.1, 0.4))
        slow = definition(chance, name).model_copy(update={"schedule": None})
        done.append(Action(at, "define", name, slow))
        for verb in chance.choices(("pause", "resume", "edit", "edit", "delete"), k=chance.randint(2, 4)):
            at += chance.uniform(0.0, 2.0) * gap
            edited = definition(chance, name).model_copy(update={"schedule": None}) if verb == "edit" else None
            done.append(Action(at, verb, name, edited))
    return sorted(done, key=lambda action: action.at)


_REGISTERED: Final = 12


def timed(chance: Random, until: float) -> list[Action]:
    """Jobs that fire often, seldom changed."""
    done = []
    for name in NAMES[: chance.choice((2, 3))]:
        schedule = chance.choice(("*/2 * * * * *", "*/3 * * * * *", "@every 3s"))
        job = definition(chance, name).model_copy(update={"schedule": schedule, "enabled": True})
        done.append(Action(chance.uniform(0.0, 1.0), "define", name, job))
        for verb in chance.choice((("pause", "resume"), ("edit",), (), ())):
            edited = definition(chance, name) if verb == "edit" else None
            done.append(Action(chance.uniform(1.5, until), verb, name, edited))
    return sorted(done, key=lambda action: action.at)


def bygone(chance: Random, until: float) -> list[Action]:
    """Jobs that fire for a while and then stop: their last due events stay, and the executions are archived."""
    done = []
    for name in NAMES:
        fields = {"schedule": chance.choice(("*/2 * * * * *", "@every 3s")), "enabled": True, "timeout": 0.8}
        done.append(
            Action(chance.uniform(0.0, 1.0), "define", name, definition(chance, name).model_copy(update=fields))
        )
        asked = range(chance.randint(0, 3))
        done += [Action(chance.uniform(1.5, until), "trigger", name, message_id=f"{name}-{n}") for n in asked]
        done.append(Action(chance.uniform(3.0, until / 2), chance.choice(("pause", "delete")), name))
    return sorted(done, key=lambda action: action.at)


def delivered(chance: Random, until: float) -> list[Action]:
    """Long work that often fails, and has time for it."""
    done = []
    for name in NAMES[: chance.choice((1, 2))]:
        job = definition(chance, name).model_copy(update={"schedule": None, "timeout": 9.0, "overlap_policy": "allow"})
        retry = job.retry.model_copy(update={"max_attempts": 3, "non_retryable_errors": ()})
        done.append(Action(chance.uniform(0.0, 1.0), "define", name, job.model_copy(update={"retry": retry})))
        asked = range(chance.randint(2, 4))
        done += [Action(chance.uniform(1.5, until / 2), "trigger", name, message_id=f"{name}-{n}") for n in asked]
    return sorted(done, key=lambda action: action.at)


def enqueued(chance: Random, until: float) -> list[Action]:
    """Jobs enqueued once, for executors outside; some must start soon, some must not start yet."""
    done = []
    for _ in range(chance.randint(4, 10)):
        at, name = chance.uniform(0.5, until), chance.choice(NAMES)
        job = definition(chance, name).model_copy(
            update={"schedule": None, "overlap_policy": "allow", "queue": OUTSIDE, "timeout": 6.0, "enabled": True}
        )
        begin, id_ = ManualClock().now() + timedelta(seconds=at), str(UUID(int=chance.getrandbits(128), version=4))
        wish = Enqueued(
            execution_id=id_,
            definition=job,
            start_at=begin + timedelta(seconds=2) if chance.random() < 0.2 else None,
            expires_at=begin + timedelta(seconds=chance.uniform(0.05, 4.0)) if chance.random() < 0.4 else None,
        )
        done.append(Action(at, "enqueue", name, wish=wish))
        if chance.random() < 0.1:
            done.append(Action(at + 1.0, "cancel", name, what="admitted"))
    return sorted(done, key=lambda action: action.at)


def bridged(chance: Random, until: float) -> list[Action]:
    """Jobs with mq tasks, with and without a timeout, beside a job that a worker runs."""
    done = []
    for name in NAMES:
        queue = QUEUES[0] if name == NAMES[-1] else BRIDGED
        fields = {"queue": queue, "timeout": chance.choice((1.0, 30.0)), "schedule": None, "enabled": True}
        job = definition(chance, name).model_copy(update=fields)
        done.append(Action(chance.uniform(0.0, 1.0), "define", name, job))
        for number in range(chance.randint(2, 5)):
            at = chance.uniform(1.5, until)
            done.append(Action(at, "trigger", name, message_id=f"{name}-{number}"))
            if chance.random() < 0.1:
                done.append(Action(at + chance.uniform(0.0, 1.0), "cancel", name, what="admitted"))
    return sorted(done, key=lambda action: action.at)


def buried(chance: Random, until: float) -> list[Action]:
    """Jobs that fail finally, whose dead letters are replayed and resolved; and backfills of past instants."""
    done = []
    for name in NAMES[: chance.choice((1, 2))]:
        job = definition(chance, name)
        retry = job.retry.model_copy(update={"max_attempts": chance.choice((1, 2))})
        schedule = chance.choice(("*/5 * * * * *", "*/7 * * * * *"))
        job = job.model_copy(update={"retry": retry, "dead_letter": True, "enabled": True, "schedule": schedule})
        done.append(Action(chance.uniform(0.0, 1.0), "define", name, job))
        for number in range(chance.randint(2, 4)):
            verb: Verb = chance.choice(("replay", "replay", "resolve", "backfill"))
            request = f"{name}-{number}"
            times = chance.choice((1, 2))
            at = chance.uniform(3.0, max(4.0, until))
            done.append(Action(at, verb, name, message_id=request, times=times))
            if chance.random() < _CALLED_OFF:
                done.append(Action(at + chance.uniform(0.0, 0.1), "delete", name))
                at += chance.choice((0.3, 3.0))
                done.append(Action(at + chance.uniform(0.0, 0.5), "define", name, job))
    return sorted(done, key=lambda action: action.at)


def actions(chance: Random, until: float) -> list[Action]:
    """Some jobs, and what is done with them."""
    names = NAMES[: chance.choice((1, 1, 2, 2, 3))]
    done = [Action(chance.uniform(0.0, 1.0), "define", name, definition(chance, name)) for name in names]
    for number in range(chance.randint(0, 7)):
        verb = chance.choice(_VERBS)
        name = chance.choice(names)
        done.append(
            Action(
                at=chance.uniform(1.5, until),
                verb=verb,
                job=name,
                definition=definition(chance, name) if verb in {"edit", "define"} else None,
                message_id=f"m{chance.choice((number, 0))}" if verb == "trigger" else "",
                times=chance.choice((1, 1, 2)),
                what=chance.choice(("planned", "admitted")),
            )
        )
    return sorted(done, key=lambda action: action.at)


Run: TypeAlias = tuple[str, str, int, int, str]
"""An attempt that a handler began: execution, step, attempt, delivery, worker."""


@dataclass(slots=True)
class Work:
    """The runs of handlers, and when they began and were stopped."""

    runs: list[Run] = field(default_factory=list)
    begun: dict[Run, float] = field(default_factory=dict)
    """When each handler began (the loop's time)."""
    stopped: dict[Run, float] = field(default_factory=dict)
    """When each handler was stopped that its worker stopped, although the worker itself went on."""

    def begin(self, run: Run, at: float) -> None:
        """Note that a handler begins."""
        self.runs.append(run)
        self.begun.setdefault(run, at)


@dataclass(frozen=True, slots=True)
class Temper:
    """The behaviour of handlers: their seconds, and the share of retryable failures."""

    paces: tuple[float, ...] = (0.01, 0.1, 0.4, 1.2)
    failing: float = 0.12


MIXED: Final = Temper()


def handler(seed: int, process: Process, work: Work, temper: Temper = MIXED) -> Callable[[Context], Awaitable[object]]:
    """A handler that usually succeeds; its behaviour depends only on the task."""

    async def handle(context: Context) -> object:
        task = f"{context.execution_id}/{context.step}/{context.attempt}/{context.delivery}"
        chance = Random(f"{seed}/{task}")
        run = context.execution_id, context.step, context.attempt, context.delivery, context.worker
        work.begin(run, process.loop.time())
        draw = chance.random() - temper.failing
        try:
            await process.wait(chance.choice(temper.paces))
            if draw < 0.0:
                raise RuntimeError("again, please")
            if draw < 0.05:
                raise ValueError("perhaps")
            if draw < 0.10:
                raise NonRetryableError("never")
            if draw < 0.20:
                await process.wait(chance.uniform(0.5, 8.0))
        except asyncio.CancelledError:
            if process.is_alive and not process.is_stopping:
                work.stopped[run] = process.loop.time()
            if draw < 0.15 and process.is_alive:
                return "done all the same"
            raise
        return {"by": context.worker, "attempt": context.attempt}

    return handle


def assigned(chance: Random, until: float) -> list[Action]:
    """The same, with attempts that may take a long time."""

    def on_its_queue(action: Action) -> Action:
        if action.definition is None:
            return action
        number = crc32(action.definition.name.encode())
        limit = Concurrency(limit=1 + number % 2, key=(None, "input.n")[number // 2 % 2])
        fields = {
            "queue": ASSIGNED,
            "timeout": chance.choice((2.0, 60.0)),
            "priority": number % 3 - 1,
            "concurrency": (limit, None)[number // 4 % 2],
        }
        return replace(action, definition=action.definition.model_copy(update=fields))

    return [on_its_queue(action) for action in actions(chance, until)]


def operated(chance: Random, until: float) -> list[Action]:
    """Jobs of several queues and priorities, some with limits, whose tasks wait for slots."""
    done = []
    for number in range(_OPERATED):
        name, queue = f"op-{number}", (*QUEUES, ASSIGNED, OUTSIDE)[number % 4]
        limit = Concurrency(limit=chance.choice((1, 2)), key=chance.choice((None, "input.n")))
        fields = {
            "schedule": None,
            "overlap_policy": "allow",
            "enabled": True,
            "queue": queue,
            "timeout": 20.0,
            "priority": chance.choice((-1, 0, 1)),
            "concurrency": chance.choice((limit, None)),
        }
        job = definition(chance, name).model_copy(update=fields)
        done.append(Action(chance.uniform(0.0, 0.5), "define", name, job))
        at = chance.uniform(1.5, until)
        for each in range(chance.randint(2, 5)):
            at = chance.choice((at, at, chance.uniform(1.5, until)))
            done.append(Action(at, "trigger", name, message_id=f"{name}-{each}", input={"n": chance.choice((1, 2))}))
    return sorted(done, key=lambda action: action.at)


_OPERATED: Final = 6


def prioritized(chance: Random, until: float) -> list[Action]:
    """Jobs and steps of several priorities, whose tasks wait for slots together."""
    done = []
    rushes = [chance.uniform(1.5, until) for _ in range(3)]
    for number in range(_PRIORITIZED):
        name = f"pr-{number}"
        job = _unhurried(chance, name, QUEUES[number % 2])
        steps = tuple(
            step.model_copy(update={"priority": chance.choice((None, None, -3, 4))}) for step in job.dag or ()
        )
        ranked = {"priority": chance.choice((-2, 0, 0, 3)), "dag": steps or job.dag}
        done.append(Action(chance.uniform(0.0, 0.5), "define", name, job.model_copy(update=ranked)))
        for each in range(chance.randint(3, 6)):
            at = chance.choice(rushes) + chance.uniform(0.0, 0.2)
            done.append(Action(at, "trigger", name, message_id=f"{name}-{each}"))
    return sorted(done, key=lambda action: action.at)


_PRIORITIZED: Final = 6


def drained(chance: Random, until: float) -> list[Action]:
    """Jobs whose tasks wait for slots while agents drain, and are triggered again when every drain must be known."""
    done = []
    for number in range(_DRAINED):
        name = f"dr-{number}"
        done.append(Action(chance.uniform(0.0, 0.5), "define", name, _unhurried(chance, name, QUEUES[number % 2])))
        moments = [chance.uniform(1.5, until) for _ in range(chance.randint(3, 7))]
        late = [until + SETTLED_S + chance.uniform(0.0, 1.0) for _ in range(2)]
        done += [Action(at, "trigger", name, message_id=f"{name}-{each}") for each, at in enumerate((*moments, *late))]
    return sorted(done, key=lambda action: action.at)


_DRAINED: Final = 6
SETTLED_S: Final = 45.0
"""Seconds after which every matcher knows that an agent drains, through all faults: hold lists come every ten seconds."""


def _unhurried(chance: Random, name: str, queue: str) -> JobDefinition:
    """Some job without a schedule, a lock or a limit, whose attempts have time."""
    fields = {"schedule": None, "overlap_policy": "allow", "enabled": True, "queue": queue, "timeout": 60.0}
    return definition(chance, name).model_copy(update=fields)


def led(chance: Random, until: float) -> list[Action]:
    """Jobs whose tasks only the executor leader gets, beside others."""

    def of_the_leader(action: Action) -> Action:
        if action.definition is None or chance.random() < _FREE:
            return action
        fields = {"job_class": "LEADER_ONLY", "timeout": chance.choice((2.0, 60.0))}
        return replace(action, definition=action.definition.model_copy(update=fields))

    return [of_the_leader(action) for action in timed(chance, until) + overlapping(chance, until)]


def divided(chance: Random, until: float) -> list[Action]:
    """Jobs that run on shards, on several or on one, beside others."""

    def on_shards(action: Action) -> Action:
        if action.definition is None or chance.random() < _FREE:
            return action
        singles = (Partition(single_shard=shard) for shard in (SHARDS[0], DRAINED_SHARD))
        rules = (Partition(all_shards=True), Partition(shard_set=SHARDS[:2]), *singles)
        fields = {"partition": chance.choice(rules), "timeout": chance.choice((2.0, 60.0))}
        return replace(action, definition=action.definition.model_copy(update=fields))

    return [on_shards(action) for action in timed(chance, until) + overlapping(chance, until)]


def acknowledged(chance: Random, until: float) -> list[Action]:
    """Jobs whose executions agents must acknowledge, beside others."""

    def by_agents(action: Action) -> Action:
        if action.definition is None or chance.random() < _FREE:
            return action
        retry = action.definition.retry.model_copy(update={"max_attempts": chance.choice((1, 2, 3))})
        fields = {
            "job_class": "QUORUM_REQUIRED",
            "acknowledgements": chance.choice((1, 2, 3, 4)),
            "acknowledgement_timeout": chance.choice((1.0, 3.0)),
            "retry": retry,
        }
        return replace(action, definition=action.definition.model_copy(update=fields))

    return [by_agents(action) for action in timed(chance, until) + overlapping(chance, until)]


SHARDS: Final = ("s1", "s2", "s3")
"""The active shards of the map."""
DRAINED_SHARD: Final = "s4"
"""The shard of the map on which nothing begins, so that the executions of its jobs are skipped."""
_FREE: Final = 0.3
"""The share of jobs whose tasks any worker gets, or whose executions need no acknowledgements."""


def depending(chance: Random, until: float) -> list[Action]:
    """Jobs that fire or are triggered, and jobs that wait for their last runs."""
    done = []
    plain = {"enabled": True, "catch_up": "all", "starting_deadline": None, "timeout": 2.0}
    upstream = ("up-0", "up-1")
    for name in upstream:
        schedule = chance.choice(("*/3 * * * * *", "*/2 * * * * *", "@every 3s", None))
        job = definition(chance, name).model_copy(update={**plain, "schedule": schedule})
        done.append(Action(chance.uniform(0.0, 0.5), "define", name, job))
        done += [
            Action(chance.uniform(1.0, until), "trigger", name, message_id=f"{name}-{each}")
            for each in range(chance.randint(0, 4))
        ]
        if chance.random() < _PAUSED:
            done += [Action(chance.uniform(1.5, until), verb, name) for verb in ("pause", "resume")]
    for number in range(chance.randint(1, 3)):
        name = f"down-{number}"
        dependencies = tuple(
            JobDependency(job=other, within=chance.choice((2.0, 5.0, 9.0)), on=chance.choice(("completed", "finished")))
            for other in chance.sample(upstream, chance.randint(1, 2))
        )
        fields = {"schedule": chance.choice(("*/4 * * * * *", None)), "dependency_timeout": chance.choice((3.0, 8.0))}
        job = definition(chance, name).model_copy(update={**plain, **fields, "depends_on": dependencies})
        done.append(Action(chance.uniform(0.0, 1.0), "define", name, job))
        done += [
            Action(
                chance.uniform(1.5, until),
                chance.choice(("trigger", "trigger", "cancel")),
                name,
                message_id=f"{name}-{each}",
                what="planned",
            )
            for each in range(chance.randint(0, 5))
        ]
    return sorted(done, key=lambda action: action.at)


_PAUSED: Final = 0.3
