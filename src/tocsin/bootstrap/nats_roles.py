"""The NATS users of an installation and the rules of each (hip-62, NATS Credentials)."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any, Final

from ..adapters.nats.admin.permissions import API as JETSTREAM
from ..adapters.nats.admin.permissions import Granting, Permissions
from ..adapters.nats.backup.creation import snapshot_order
from ..adapters.nats.client.names import Names
from ..domain.events import (
    CancelRequest,
    ChangeRequest,
    Completion,
    Enqueued,
    HeartbeatDetails,
    OutputLine,
    PoisonMessage,
    Report,
    StepProgress,
    Trigger,
)
from ..engine.heads import SHOWN
from ..engine.leader_election import lease_access
from ..engine.snapshots import PARTS
from ..engine.stage import Access, AnyStage
from ..engine.stage_leases import follower_of, lease_of
from ..settings import Settings
from ..stages.planner import PLANNER
from ..subjects import (
    ANNOUNCED,
    DECISION_STREAMS,
    LOG_ARCHIVE,
    OUTPUT_STREAMS,
    PROCESS,
    SERVER_STREAMS,
    STREAMS,
    TIMEZONE_REQUEST,
    Bucket,
    Stream,
    changed_bytes_key,
    cursor,
)
from .commits import LED
from .installation import names_of
from .provision import durables_of, followed_by, installed_stages, read_by_durables

SCHEDULER: Final = "scheduler"
"""All stages in one process: `tocsin run --all`."""
API: Final = "api"
ADMIN: Final = "admin"
OPERATOR: Final = "operator"
VIEWER: Final = "viewer"
BACKUP: Final = "backup"
RESTORE: Final = "restore"
WORKER: Final = "worker"
PUBLIC: Final = "public"
MQ_EXECUTOR: Final = "mq-executor"
API_CLIENT: Final = "api-client"

_VIEWER_ACCESS: Final = Access(
    reads=(*STREAMS, Stream.MQ, *OUTPUT_STREAMS, Stream.NOTIFICATIONS),
    follows=STREAMS,
    looks_up=(
        *(Bucket.DEFINITIONS, Bucket.LOCKS, Bucket.LEADER, Bucket.CURSORS),
        *(Bucket.AGENTS, Bucket.QUEUES, Bucket.CHECKPOINTS, Bucket.FOREIGN, Bucket.TRIGGERS),
    ),
    reads_archive=True,
)
_BACKUP_ACCESS: Final = Access(looks_up=(Bucket.CURSORS,), reads_archive=True)
_OPERATOR_INPUTS: Final = (ChangeRequest, Trigger, CancelRequest, Report, Completion)
_CHANGED_BYTES: Final = (Bucket.QUEUES, changed_bytes_key("*"))
_OPERATOR_ACCESS: Final = replace(
    _VIEWER_ACCESS,
    appends=_OPERATOR_INPUTS,
    writes=((Bucket.TOKENS, ">"), (Bucket.TIMEZONES, TIMEZONE_REQUEST), (Bucket.FOREIGN, ">"), _CHANGED_BYTES),
)
_PRESENCE: Final = (Bucket.LEADER, f"{PROCESS}.*")
_API_ACCESS: Final = replace(
    _VIEWER_ACCESS,
    appends=(*_OPERATOR_INPUTS, Enqueued, StepProgress, HeartbeatDetails),
    writes=((Bucket.ANSWERS, ">"), (Bucket.TOKENS, ">"), _CHANGED_BYTES, _PRESENCE),
)
_WORKER_EVENTS: Final = (Report, OutputLine, StepProgress, HeartbeatDetails)


def backing_up(rules: Permissions, names: Names) -> Permissions:
    """Add the right to take snapshots of streams, which changes nothing in them.

    `rules`: those of a reader of the archive.
    """
    order = snapshot_order(names)
    publish = {
        *rules.publish,
        *(f"{JETSTREAM}.STREAM.{verb}.{stream}" for verb in ("INFO", "SNAPSHOT") for stream in order),
        *(f"$JS.SNAPSHOT.ACK.{stream}.>" for stream in order),
        *(f"{JETSTREAM}.CONSUMER.LIST.{names.stream(stream)}" for stream in SERVER_STREAMS),
    }
    return replace(rules, publish=tuple(sorted(publish)))


def restoring(rules: Permissions, provisioning: Permissions, names: Names) -> Permissions:
    """Add the rights to create streams from snapshots and to end the log.

    `rules`: those of a reader of the log and the archive. `provisioning`: those of the user that runs `tocsin init`.
    """
    order = snapshot_order(names)
    publish = {
        *rules.publish,
        *provisioning.publish,
        *(f"{JETSTREAM}.STREAM.RESTORE.{stream}" for stream in order),
        *(f"$JS.SNAPSHOT.RESTORE.{stream}.*" for stream in order),
        f"$O.{names.archive_bucket}.>",
        names.key(Bucket.CURSORS, LOG_ARCHIVE),
        f"{JETSTREAM}.STREAM.INFO.{names.commits_stream}",
        f"{names.commits_prefix}.*",
    }
    return replace(rules, publish=tuple(sorted(publish)), deny_publish=())


def permissions(settings: Settings) -> dict[str, Permissions]:
    """Return the rules of every role by name: stages in flow order, then the others.

    A user's name has hyphens, also that of a stage: `lock-keeper`.
    """
    stages = installed_stages(settings)
    names = names_of(settings)
    granting = Granting(
        names,
        durables_of(settings),
        {**settings.opened_streams, **settings.triggers.buckets},
        agents=settings.agents.accounts,
        has_webhooks=bool(settings.triggers.webhooks),
        is_screened=settings.screener.enabled,
    )
    senders = settings.triggers.senders
    durables = {stage.user: [one.spec(settings) for one in read_by_durables(stage)] for stage in stages}
    roles = {stage.user: granting.part(stage.user, _access(stage), durables[stage.user]) for stage in stages}
    roles |= {
        SCHEDULER: granting.part(SCHEDULER, _together(stages), [spec for specs in durables.values() for spec in specs]),
        API: granting.receiving(granting.fetching(granting.watching(API, _API_ACCESS))),
        WORKER: granting.working(WORKER, _WORKER_EVENTS),
        **{
            user: granting.working(user, _WORKER_EVENTS, agent=name)
            for name in settings.agents.accounts
            for user in (f"{WORKER}-{name}",)
        },
        ADMIN: granting.provisioning(ADMIN),
        OPERATOR: granting.watching(OPERATOR, _OPERATOR_ACCESS),
        VIEWER: granting.watching(VIEWER, _VIEWER_ACCESS),
        BACKUP: backing_up(granting.part(BACKUP, _BACKUP_ACCESS), names),
        RESTORE: restoring(granting.part(RESTORE, _BACKUP_ACCESS), granting.provisioning(RESTORE), names),
        PUBLIC: granting.public(PUBLIC, PUBLIC, senders.get(PUBLIC, ())),
        **{
            user: granting.public(user, name, senders.get(name, ()), settings.announced_to(name))
            for name in settings.programs
            for user in (f"{PUBLIC}-{name}",)
        },
    }
    if settings.server.over_nats:
        requests = names.to_wire("api.*")
        roles[API] = replace(roles[API], subscribe=(*roles[API].subscribe, requests, "$SRV.>"), responds=True)
        for role in (ADMIN, OPERATOR, VIEWER):
            roles[role] = replace(roles[role], publish=(*roles[role].publish, requests))
        roles[API_CLIENT] = granting.api_client(API_CLIENT, requests)
    if settings.bridged_queues:
        roles[MQ_EXECUTOR] = granting.mq_executor(MQ_EXECUTOR, teams=settings.mq_teams)
        for team in settings.mq_teams:
            roles[f"{MQ_EXECUTOR}-{team}"] = granting.mq_executor(f"{MQ_EXECUTOR}-{team}", team=team)
    return roles


def _access(stage: AnyStage) -> Access:
    """Return a stage's access, with the access that every stage needs.

    It shows the foreign messages that it meets, and stores a dead letter for a message that it cannot read.

    Each stage that the loop of commits runs has a lease, reads the streams of its inputs from its positions, and shows heads; the
    planner's process writes snapshots and announces all public events. A stage at the edge that follows decisions has a lease, and a
    place for each subscription.
    """
    access = stage.access
    is_led, is_planner = stage.name in LED, stage.name == PLANNER.name
    followed = [one.durable for one in followed_by(stage)]
    inputs = [one.stream for one in stage.subscriptions if one.stream not in DECISION_STREAMS]
    follows = [Stream.REQUESTS, *inputs] if is_led else []  # the changes of a job come before its other decisions
    led = [lease_of(stage.name)] if is_led or access.hears_events else []
    led += [follower_of(stage.name)] if followed else []
    places = [cursor(Stream.LOG, durable) for durable in followed] + ([ANNOUNCED] if is_planner else [])
    shown = [SHOWN, *([PARTS] if is_planner else [])] if is_led else []
    return replace(
        access,
        appends=(*access.appends, *((PoisonMessage,) if stage.subscriptions or stage.deadlines else ())),
        follows=tuple(dict.fromkeys((*access.follows, *follows))),
        writes=(
            *access.writes,
            (Bucket.FOREIGN, ">"),
            *chain.from_iterable(map(lease_access, led)),
            *((Bucket.CURSORS, place) for place in places),
            *((Bucket.SNAPSHOTS, key) for key in shown),
            _PRESENCE,
        ),
        announces=is_planner,
    )


def _together(stages: Sequence[AnyStage]) -> Access:
    merged: dict[str, Any] = {}
    for field in fields(Access):
        values = [getattr(_access(stage), field.name) for stage in stages]
        is_list = isinstance(field.default, tuple)
        merged[field.name] = tuple(dict.fromkeys(chain.from_iterable(values))) if is_list else any(values)
    return Access(**merged)
