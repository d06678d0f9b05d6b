"""One look at an installation. What cannot be asked, because a part of it is down, is said; the rest is told all the same."""

import asyncio
import json
from collections.abc import Awaitable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from ..adapters.nats.admin.inspection import (
    DurableState,
    Inspection,
    ServerState,
    StreamState,
    lifetime,
    names_of_streams,
)
from ..adapters.nats.client.connection import JetStreamError
from ..bootstrap import STAGES, Installation, Unreachable, bridged_queues, compose
from ..domain.job_record import Registration
from ..ports import HistoryUnavailable, LogUnavailable
from ..ports.queries import ExecutionQuery
from ..stages.recorder import RECORDED
from ..subjects import DEFAULT_QUEUE, Bucket, Stream, executor_durable

T = TypeVar("T")

SQLITE: Final = "sqlite:///"
UNKNOWN: Final = (LogUnavailable, HistoryUnavailable, JetStreamError, Unreachable)
"""What may befall a question without the others being in vain."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads (hip-62, Architecture). `renewed_at` is by the log's clock, `said_at` by the holder's."""

    name: str
    holder: str
    renewed_at: datetime
    said_at: datetime
    ends_at: datetime | None


@dataclass(frozen=True, slots=True)
class Durable:
    """A durable with whose it is, and how old the oldest message is that it has not dealt with."""

    state: DurableState
    owner: str
    """A stage, `executors`, or nobody that we know."""
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of tasks. `waiting`: given to nobody; `taken`: given to an executor; `executors`: asking for more."""

    name: str
    waiting: int
    taken: int
    executors: int

    @property
    def is_unattended(self) -> bool:
        """Tasks wait, and nobody is there for them."""
        return bool(self.waiting) and not self.executors and not self.taken


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs that are registered."""

    registered: int
    paused: int
    disabled: int


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """How far the history is. `newest` and `place` are sequences of the log; `since`: when what it lacks was stored."""

    place: int
    newest: int
    since: datetime | None
    open: int
    """Executions that are not over, as far as it knows."""


@dataclass(frozen=True, slots=True)
class Status:
    """All of it. What is None could not be asked; `troubles` says why."""

    at: datetime
    root: str
    server: ServerState
    streams: Mapping[str, StreamState | None]
    leases: tuple[Lease, ...] | None
    durables: tuple[Durable, ...]
    queues: tuple[Queue, ...]
    jobs: Jobs | None
    history: HistoryPlace | None
    troubles: Mapping[str, str]

    @property
    def is_set_up(self) -> bool:
        """The streams exist, as far as could be asked."""
        return not any(stream is None for stream in self.streams.values())


async def status(installation: Installation) -> Status:
    """Look at everything once. Raises nothing that a part of it that is down could cause."""
    inspection = Inspection(installation.connection, installation.names)
    asking = _Asking()
    names = installation.names
    wanted = names_of_streams(names, bridge=bool(bridged_queues(installation.settings)))
    found = await asyncio.gather(*(asking(f"stream {name}", inspection.stream(name)) for name in wanted))
    # A stream that does not exist is asked nothing more.
    streams = {name: one for name, one in zip(wanted, found, strict=True) if f"stream {name}" not in asking.troubles}
    there = {stream for stream in Stream if streams.get(names.stream(stream))}
    leases, jobs, history = await asyncio.gather(
        asking("leases", _leases(inspection)) if _has(streams, installation, Bucket.LEADER) else _nothing(),
        asking("jobs", _jobs(installation)) if _has(streams, installation, Bucket.DEFINITIONS) else _nothing(),
        asking("history", _history(installation)) if Stream.LOG in there else _nothing(),
    )
    durables = await asyncio.gather(
        *(asking(f"durables of {names.stream(s)}", _durables(installation, inspection, s)) for s in sorted(there))
    )
    known = tuple(durable for some in durables if some for durable in some)
    return Status(
        at=installation.clock.now(),
        root=names.root,
        server=inspection.server(),
        streams=streams,
        leases=leases,
        durables=known,
        queues=tuple(_queues(installation, known)),
        jobs=jobs,
        history=history,
        troubles=asking.troubles,
    )


def as_json(seen: Status) -> dict[str, Any]:
    """A look for programs: the same, without the servers' own configuration."""
    answer = asdict(seen)
    for stream in answer["streams"].values():
        if stream is not None:
            del stream["config"]
    for durable in answer["durables"]:
        durable.update(durable.pop("state"))
        del durable["config"]
    for queue, state in zip(answer["queues"], seen.queues, strict=True):
        queue["unattended"] = state.is_unattended
    return answer


class _Asking:
    def __init__(self) -> None:
        self.troubles: dict[str, str] = {}

    async def __call__(self, what: str, question: Awaitable[T]) -> T | None:
        try:
            return await question
        except UNKNOWN as error:
            self.troubles[what] = str(error).splitlines()[0]
            return None


async def _nothing() -> None:
    return None


def _has(streams: Mapping[str, StreamState | None], installation: Installation, bucket: Bucket) -> bool:
    return streams.get(installation.names.bucket_stream(bucket)) is not None


async def _leases(inspection: Inspection) -> tuple[Lease, ...]:
    leases = []
    for name, stored in sorted((await inspection.keys(Bucket.LEADER)).items()):
        value, ttl = json.loads(stored.body), lifetime(stored)
        ends = None if ttl is None else stored.time + timedelta(seconds=ttl)
        leases.append(Lease(name, value["holder"], stored.time, datetime.fromisoformat(value["renewed_at"]), ends))
    return tuple(leases)


async def _jobs(installation: Installation) -> Jobs:
    shown = await installation.projections.entries(Bucket.DEFINITIONS)
    registrations = [Registration.model_validate_json(body) for body in shown.values()]
    return Jobs(
        registered=len(registrations),
        paused=sum(one.paused for one in registrations),
        disabled=sum(not one.definition.enabled for one in registrations),
    )


async def _history(installation: Installation) -> HistoryPlace:
    log, url = installation.log, installation.settings.database.url
    if url.startswith(SQLITE) and not await asyncio.to_thread(Path(url.removeprefix(SQLITE)).exists):
        raise HistoryUnavailable(
            f"no history is kept in {url.removeprefix(SQLITE)}: name another by TOCSIN_DATABASE_URL"
        )
    async with installation.history() as history:
        place = await history.offset(Stream.LOG)
        unfinished = [await history.count(ExecutionQuery(status=one)) for one in ("pending", "running")]
    lasts = [await log.last(one) for one in RECORDED[Stream.LOG]]
    newest = max((last.sequence for last in lasts if last), default=0)
    missing = [first for one in RECORDED[Stream.LOG] for first in await log.read(one, after=place, limit=1)]
    since = min((recorded.time for recorded in missing), default=None)
    return HistoryPlace(place, newest, since, sum(unfinished))


async def _durables(installation: Installation, inspection: Inspection, stream: Stream) -> list[Durable]:
    owners = {
        (s.stream, s.durable): stage.name
        for stage in compose(installation, STAGES, key=b"")
        for s in stage.subscriptions
    }
    owners |= {(Stream.LOG, executor_durable(queue)): "executors" for queue in _queue_names(installation)}
    states = await inspection.durables(stream)
    behind = [state for state in states if state.pending or state.ack_pending]
    oldest = dict(
        zip(
            (state.name for state in behind),
            await asyncio.gather(*(inspection.oldest_behind(state) for state in behind)),
            strict=True,
        )
    )
    return [Durable(state, owners.get((stream, state.name), ""), oldest.get(state.name)) for state in states]


def _queues(installation: Installation, durables: tuple[Durable, ...]) -> list[Queue]:
    log = installation.names.stream(Stream.LOG)
    states = {durable.state.name: durable.state for durable in durables if durable.state.stream == log}
    return [
        Queue(queue, state.pending, state.ack_pending, state.readers)
        for queue in _queue_names(installation)
        if (state := states.get(executor_durable(queue)))
    ]


def _queue_names(installation: Installation) -> list[str]:
    bridged = bridged_queues(installation.settings)
    return [queue for queue in sorted({DEFAULT_QUEUE, *installation.settings.queues}) if queue not in bridged]
