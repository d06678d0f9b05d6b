"""The stages of a process on the log of commits."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from .. import __version__, telemetry
from ..adapters.memory.durable import InMemoryDurable
from ..engine.edge import EdgeDecisions, EdgeFollower
from ..engine.heartbeat import Heartbeat
from ..engine.stage import BoundStage, BoundSubscription
from ..engine.stage_leases import follower_of
from ..engine.step import Sources
from ..engine.ticker_watch import TickerWatch
from ..settings import Settings
from ..stages.dag_advancer.stage import DAG_ADVANCER
from ..stages.dead_letter_sink import DEAD_LETTER_SINK
from ..stages.dependency_keeper.decisions import DEPENDENCY_KEEPER_OF_COMMITS, Waits
from ..stages.dependency_keeper.past_runs import PastRuns
from ..stages.dependency_keeper.stage import DEPENDENCY_KEEPER
from ..stages.lease_keeper import LEASE_KEEPER
from ..stages.lock_keeper import LOCK_KEEPER
from ..stages.matcher.stage import Matcher
from ..stages.planner import PLANNER
from ..stages.recoverer.decisions import RECOVERER_OF_COMMITS, Recoveries
from ..stages.recoverer.stage import RECOVERER
from ..stages.retrier import RETRIER
from ..stages.ticker import TICKER, TICKER_OF_COMMITS, Instants
from ..subjects import DECISION_STREAMS, INPUT_STREAMS, Stream
from .commit_process import View
from .installation import Ports
from .leading import Leading

_PURE: Final = (PLANNER, LOCK_KEEPER, DAG_ADVANCER, LEASE_KEEPER, RETRIER, DEAD_LETTER_SINK)
PURE: Final = frozenset(stage.name for stage in _PURE)
"""The stages that the loop of commits decides for.

Other stages read events by themselves, and propose their decisions.
"""
OF_COMMITS: Final = frozenset({TICKER.name, DEPENDENCY_KEEPER.name, RECOVERER.name})
"""The stages that have another declaration on the log of commits."""


def has_lease(stage: str) -> bool:
    """Return whether the loop of commits decides for a stage."""
    return stage in PURE or stage in OF_COMMITS


FOLLOWS_REPORTS: Final = Matcher.follow_reports.__name__

BATCH: Final = 256
"""The greatest number of messages that are decided together, as over NATS."""

_log = telemetry.get_logger("tocsin")


def takers() -> Mapping[Stream, frozenset[str]]:
    """Return the stages that take each stream of inputs by the log of commits."""
    stages = (*_PURE, TICKER_OF_COMMITS, DEPENDENCY_KEEPER_OF_COMMITS, RECOVERER_OF_COMMITS)
    return {
        stream: frozenset(stage.name for stage in stages if any(one.stream is stream for one in stage.subscriptions))
        for stream in INPUT_STREAMS
    }


def unused_durables() -> frozenset[str]:
    """Return the durables that the log of commits replaces."""
    replaced = (*_PURE, TICKER, DEPENDENCY_KEEPER, RECOVERER)
    return frozenset(subscription.durable for stage in replaced for subscription in stage.subscriptions)


def split(
    stages: Sequence[BoundStage], view: View, ports: Ports, key: bytes
) -> tuple[list[BoundStage], list[BoundStage]]:
    """Return the stages that the loop decides for, and the stages that run by themselves.

    `view`: the events of the process. `ports`: with its log. `key`: the key of the installation.
    """
    names = {stage.name for stage in stages}
    pure = [stage for stage in stages if stage.name in PURE]
    others = [stage for stage in stages if stage.name not in {*PURE, *OF_COMMITS}]
    # The lock keeper shows its locks; the timers of the others are deadlines.
    others += [
        BoundStage(stage.name, loops=stage.loops) for stage in pure if stage.name in {PLANNER.name, LOCK_KEEPER.name}
    ]
    # The end of a step frees its slot: it comes with the commit that takes the report.
    others = [
        replace(
            stage,
            loops=tuple(
                loop for loop in stage.loops if getattr(getattr(loop, "func", loop), "__name__", "") != FOLLOWS_REPORTS
            ),
        )
        for stage in others
    ]
    if TICKER.name in names:
        watch = TickerWatch(view, ports.log, ports.projections, ports.clock, heartbeat_of(ports))
        others.append(BoundStage(TICKER.name, loops=(watch.keep_timezones, watch.keep_heartbeat, watch.report_missed)))
    if DEPENDENCY_KEEPER.name in names:
        past = PastRuns(view, ports.log, ports.stored, ports.clock)
        others.append(BoundStage(DEPENDENCY_KEEPER.name, loops=(past.run,)))
    pure += (stage for stage in stages_of_commits(ports.settings, key) if stage.name in names)
    return pure, others


def heartbeat_of(ports: Ports) -> Heartbeat | None:
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


def stages_of_commits(settings: Settings, key: bytes) -> list[BoundStage]:
    """Return the stages that have another declaration on the log of commits (`OF_COMMITS`)."""
    return [
        TICKER_OF_COMMITS.bind(Instants()),
        DEPENDENCY_KEEPER_OF_COMMITS.bind(Waits()),
        RECOVERER_OF_COMMITS.bind(Recoveries.of(key, settings)),
    ]


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
