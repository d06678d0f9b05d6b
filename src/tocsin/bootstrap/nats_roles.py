"""Who connects to NATS, and what each may do there (hip-62, NATS Credentials): every stage, the workers, people, programs.

The rules are derived from what the parts say of themselves: the durables that a stage reads, the facts that it appends, the
streams and buckets that it looks into. `tocsin permissions` prints them for nats-server.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from nats.aio.client import Client

from ..adapters.nats.admin.permissions import Granting, Permissions
from ..adapters.nats.client.connection import Connection
from ..adapters.nats.log.archive_store import NatsArchiveStore
from ..adapters.nats.log.event_log import NatsEventLog
from ..adapters.nats.log.projections import NatsProjections
from ..adapters.nats.log.stored_log import NatsStoredLog
from ..adapters.system_clock import SystemClock
from ..archive.archive import Archive
from ..domain.events import (
    Cancelled,
    CancelRequest,
    Defined,
    Deleted,
    Enqueued,
    LeaseTimer,
    Paused,
    PoisonMessage,
    Released,
    Replayed,
    Report,
    Resolved,
    Resumed,
    Started,
    Trigger,
)
from ..engine.stage import Access, Stage
from ..ports import DurableSpec
from ..settings import Settings
from ..stages import recorder
from ..stages.archiver import stage as archiver
from ..subjects import Bucket, Stream, executor_durable
from . import (
    STAGES,
    Installation,
    bridged_queues,
    compose,
    durables_of,
    names_of,
    own_queues,
)

SCHEDULER: Final = "scheduler"
"""All stages in one process, as `tocsin run --all` has it."""
API: Final = "api"
ADMIN: Final = "admin"
OPERATOR: Final = "operator"
VIEWER: Final = "viewer"
WORKER: Final = "worker"
PUBLIC: Final = "public"
OUTSIDE: Final = "mq-executor"

_SEEN: Final = Access(
    reads=(Stream.LEDGER, Stream.LOG),
    follows=(Stream.LEDGER, Stream.LOG),
    looks_up=(Bucket.DEFINITIONS, Bucket.LOCKS, Bucket.LEADER, Bucket.CURSORS),
    reads_archive=True,
)
_CHANGED: Final = (
    *(Defined, Paused, Resumed, Deleted, Trigger),
    *(CancelRequest, Cancelled, Replayed, Resolved),
)
_OPERATED: Final = replace(_SEEN, appends=_CHANGED, writes=((Bucket.TOKENS, ">"),))
_HANDED_OUT: Final = (Enqueued, Started, Released, Report, LeaseTimer)
"""What it stores for executors and clients that speak only HTTP."""
_SERVED: Final = replace(
    _SEEN, appends=(*_CHANGED, *_HANDED_OUT), looks_up=(*_SEEN.looks_up, Bucket.TOKENS), writes=((Bucket.ANSWERS, ">"),)
)
_WORKED: Final = Access(appends=(Started, Report), reads=(Stream.LOG,), follows=(Stream.LOG,))


def permissions(settings: Settings) -> dict[str, Permissions]:
    """The rules of every role of an installation, by its name: the stages in flow order, then the others.

    A stage's name has hyphens here, as a user's has everywhere else: `lock-keeper`.
    """
    names, stages = names_of(settings), _stages(settings)
    durables = {
        stage.name: [DurableSpec(s.durable, s.stream, s.filters) for s in stage.subscriptions] for stage in stages
    }
    granting = Granting(names, durables_of(settings, stages))
    roles = {
        name: granting.part(name, _with_refusals(stage), durables[stage.name])
        for stage in stages
        for name in [stage.name.replace("_", "-")]
    }
    tasks = [DurableSpec(executor_durable(queue), Stream.LOG, ()) for queue in own_queues(settings)]
    roles |= {
        SCHEDULER: granting.part(SCHEDULER, _together(stages), [one for some in durables.values() for one in some]),
        API: granting.part(API, _SERVED, tasks),
        WORKER: granting.part(WORKER, _WORKED, tasks, needs_key=False),
        ADMIN: granting.provisioning(ADMIN),
        OPERATOR: granting.watching(OPERATOR, _OPERATED),
        VIEWER: granting.watching(VIEWER, _SEEN),
        PUBLIC: granting.public(PUBLIC),
    }
    if settings.server.over_nats:
        asked = names.to_wire("api.*")
        roles[API] = replace(roles[API], subscribe=(*roles[API].subscribe, asked, "$SRV.>"), responds=True)
        for who in (ADMIN, OPERATOR, VIEWER):
            roles[who] = replace(roles[who], publish=(*roles[who].publish, asked))
    if bridged_queues(settings):
        roles[OUTSIDE] = granting.outside(OUTSIDE)
    return roles


def _with_refusals(stage: Stage) -> Access:
    """What no handler can read becomes a dead letter, in the name of whichever stage it came to.

    And what comes late is looked for among what was decided (`archive.cursors`).
    """
    if not stage.subscriptions:
        return stage.access
    access = stage.access
    looks_up = tuple(dict.fromkeys((*access.looks_up, Bucket.CURSORS)))
    return replace(access, appends=(*access.appends, PoisonMessage), looks_up=looks_up)


def _together(stages: Sequence[Stage]) -> Access:
    """What several stages touch."""
    each = [_with_refusals(stage) for stage in stages]
    return Access(
        appends=tuple({kind: None for one in each for kind in one.appends}),
        reads=tuple({stream: None for one in each for stream in one.reads}),
        follows=tuple({stream: None for one in each for stream in one.follows}),
        asks_about=tuple({stream: None for one in each for stream in one.asks_about}),
        looks_up=tuple({bucket: None for one in each for bucket in one.looks_up}),
        writes=tuple({key: None for one in each for key in one.writes}),
        reads_archive=any(one.reads_archive for one in each),
        keeps_archive=any(one.keeps_archive for one in each),
    )


def _stages(settings: Settings) -> list[Stage]:
    """Every stage that these settings lead to, composed on a client that is never connected."""
    names, connection = names_of(settings), Connection(Client())
    projections = NatsProjections(connection, names)
    nowhere = Installation(
        settings,
        names,
        connection,
        NatsEventLog(connection, names),
        projections,
        SystemClock(),
        NatsStoredLog(connection, names),
        Archive(NatsArchiveStore(connection, names), projections),
    )
    return [
        *compose(nowhere, STAGES, key=b""),
        *(Stage(name, access=module.ACCESS) for name, module in (("recorder", recorder), ("archiver", archiver))),
    ]
