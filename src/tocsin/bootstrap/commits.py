"""The stages of a process on the log of commits."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from .. import __version__, telemetry
from ..adapters.memory.durable import InMemoryDurable
from ..engine.displays import DailyUseDisplay, LockDisplay
from ..engine.edge import EdgeDecisions, EdgeFollower
from ..engine.report_lists import LISTS
from ..engine.stage import BoundStage, BoundSubscription, Loop
from ..engine.stage_leases import follower_of
from ..engine.step import Sources
from ..engine.ticker_watch import Heartbeat, TickerWatch
from ..stages.dag_advancer.stage import DAG_ADVANCER
from ..stages.dead_letter_sink import DEAD_LETTER_SINK
from ..stages.dependency_keeper.past_runs import PastRuns
from ..stages.dependency_keeper.stage import DEPENDENCY_KEEPER
from ..stages.lease_keeper import LEASE_KEEPER
from ..stages.lock_keeper import LOCK_KEEPER
from ..stages.planner import PLANNER
from ..stages.recoverer import RECOVERER
from ..stages.registrar import REGISTRAR
from ..stages.retrier import RETRIER
from ..stages.ticker import TICKER
from ..subjects import DECISION_STREAMS, INPUT_STREAMS, Stream, any_of
from .commit_process import View
from .installation import Ports
from .leading import Leading

_LED: Final = (
    *(TICKER, PLANNER, DEPENDENCY_KEEPER, LOCK_KEEPER, DAG_ADVANCER),
    *(LEASE_KEEPER, RETRIER, DEAD_LETTER_SINK, RECOVERER, REGISTRAR),
)
"""The stages that the loop of commits decides for, one process for each.

Other stages read events by themselves, and propose their decisions.
"""
LED: Final = frozenset(stage.name for stage in _LED)

BATCH: Final = 256
"""The greatest number of messages that are decided together, as over NATS."""

_log = telemetry.get_logger("tocsin")


def takers() -> Mapping[Stream, frozenset[str]]:
    """Return the stages that take each stream of inputs by the log of commits."""
    return {
        stream: frozenset(stage.name for stage in _LED if any(one.stream is stream for one in stage.subscriptions))
        for stream in INPUT_STREAMS
    }


_TAKES: Final = {
    stage.name: any_of([one for each in stage.subscriptions if isinstance(each.filters, tuple) for one in each.filters])
    for stage in _LED
    if stage.subscriptions
}


def takes(stage: str, subject: str) -> object:
    """Return whether a stage takes the inputs with a subject by the log of commits."""
    return stage in _TAKES and (subject.startswith(LISTS.removesuffix("*")) or _TAKES[stage](subject))


def split(stages: Sequence[BoundStage], view: View, ports: Ports) -> tuple[list[BoundStage], list[BoundStage]]:
    """Return the stages that the loop decides for, and the stages beside it.

    These are the other stages, and loops over the fold. `view`: the events of the process. `ports`: with its log.
    """
    led = [stage for stage in stages if stage.name in LED]
    others = [stage for stage in stages if stage.name not in LED]
    beside = (
        replace(stage, subscriptions=at_edge(stage), loops=_beside(stage.name, view, ports), deadlines=())
        for stage in led
    )
    return [of_loop(stage) for stage in led], [*others, *(one for one in beside if one.loops or one.subscriptions)]


def decide(stages: Sequence[BoundStage]) -> bool:
    """Return whether any of these stages decides, and so needs the fold of its process."""
    return any(stage.subscriptions or stage.access.appends for stage in stages)


def of_loop(stage: BoundStage) -> BoundStage:
    """Return the part of a stage that the loop decides for."""
    return replace(stage, subscriptions=tuple(one for one in stage.subscriptions if not one.is_at_edge))


def at_edge(stage: BoundStage) -> tuple[BoundSubscription, ...]:
    """Return the subscriptions of a stage that the loop leaves to the edge."""
    return tuple(one for one in stage.subscriptions if one.is_at_edge)


def _beside(stage: str, view: View, ports: Ports) -> tuple[Loop, ...]:
    if stage == TICKER.name:
        watch = TickerWatch(view, ports.log, ports.projections, ports.clock, _heartbeat(ports))
        return watch.keep_timezones, watch.keep_heartbeat, watch.report_missed
    if stage == PLANNER.name:
        return (DailyUseDisplay(view, stage, ports.projections, ports.clock).run,)
    if stage == LOCK_KEEPER.name:
        return (LockDisplay(view, stage, ports.log, ports.projections, ports.clock).run,)
    if stage == DEPENDENCY_KEEPER.name:
        return (PastRuns(view, ports.log, ports.stored, ports.clock).run,)
    return ()


def _heartbeat(ports: Ports) -> Heartbeat | None:
    """Return the sender of the ticker's signs of life; None: no monitor is set."""
    heartbeat = ports.settings.heartbeat
    if heartbeat.url is None:
        return None
    from ..adapters.http.heartbeat import HttpPing  # noqa: PLC0415 - httpx takes long to import

    return Heartbeat(HttpPing(heartbeat.url.get_secret_value(), __version__), ports.clock, every=heartbeat.every)


def at_the_edge(
    stages: Sequence[BoundStage], decisions: EdgeDecisions, sources: Sources, leading: Leading, name: str
) -> list[BoundStage]:
    """Return stages with loops that follow decisions, and with durables of other streams only.

    `name`: the name of the process. One process leads each stage, so that nothing is shown or handed over twice.
    """
    edges = list[BoundStage]()
    for stage in stages:
        followed = [one for one in stage.subscriptions if one.stream in DECISION_STREAMS]
        lead = leading.candidate(follower_of(stage.name), name)
        followers = [EdgeFollower(stage.name, one, decisions, sources, lead) for one in followed]
        loops = (lead.run, *(follower.run for follower in followers)) if followers else ()
        others = tuple(one for one in stage.subscriptions if one not in followed)
        edges.append(replace(stage, subscriptions=others, loops=(*stage.loops, *loops)))
    return edges


async def read_durable(
    stage: BoundStage,
    subscription: BoundSubscription,
    durable: InMemoryDurable,
    policy: EdgeDecisions,
) -> None:
    """Decide on the messages of a durable until cancelled, and finish the last batch."""
    with telemetry.bound(stage=stage.name):
        while True:
            deliveries = await durable.take(BATCH, wait=None)
            deciding = asyncio.ensure_future(policy.apply(subscription, deliveries))
            try:
                await asyncio.shield(deciding)
            except asyncio.CancelledError:
                await deciding
                raise
