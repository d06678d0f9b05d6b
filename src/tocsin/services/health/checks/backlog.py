"""Check whether stages, workers, the history and receivers of notifications keep up."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from ....domain.text import counted, utc_text
from ....ports.queries import MAX_NOTIFICATIONS, NotificationQuery
from ...agents import AgentRegistry
from ...notifications import FAILED, DeliveryState, NotificationRow, notifications
from ...queue_decisions import pauses_of
from ...unserved import Unserved, unserved
from ..findings import CheckContext, Finding, bad, ok, warn
from ..status import SQLITE, Durable, functions_waiting

LATE_AFTER: Final = timedelta(seconds=60)
"""Age from which an unacknowledged message of a stage is late."""
SHOWN: Final = 5
"""Functions in the text of a finding."""
MAX_LISTED: Final = 100
"""Functions in the details of a finding."""
HELD_LATE_AFTER: Final = timedelta(minutes=10)
"""Age from which the oldest task of a queue with a limit is late."""
HISTORY_LATE_AFTER: Final = timedelta(seconds=30)
HISTORY_BAD_AFTER: Final = timedelta(minutes=10)


async def stages(context: CheckContext) -> list[Finding]:
    """Report stages that do not handle their messages (`stage-absent`, `stage-late`, `durable-full`)."""
    findings = []
    for durable in context.status.durables:
        if not durable.owner:
            continue
        state = durable.state
        late = durable.oldest is not None and context.age(durable.oldest) >= LATE_AFTER
        # A stage that hands every message back has no open request while it holds one.
        is_read = state.readers or (state.delivered_at is not None and context.age(state.delivered_at) < LATE_AFTER)
        if state.ack_pending >= state.max_ack_pending > 0:
            findings.append(
                bad(
                    "durable-full",
                    f"{state.name} has {counted(state.ack_pending, 'message')} out, its maximum, and delivers no more",
                    means="its readers have not acknowledged them; all other messages wait",
                    do="check for readers that hang; unacknowledged messages are redelivered after the acknowledgement wait",
                    durable=state.name,
                )
            )
        elif late and not is_read:
            findings.append(
                bad(
                    "stage-absent",
                    f"no process reads {state.name}: {_backlog(context, durable)}",
                    means=f"the stage {durable.owner} makes no decisions",
                    do=f"run `tocsin run {durable.owner.replace('_', '-')}`",
                    durable=state.name,
                )
            )
        elif late:
            findings.append(
                warn(
                    "stage-late",
                    f"{durable.owner} is late on {state.name}: {_backlog(context, durable)}",
                    means="it is overloaded, or hands the same message back repeatedly",
                    do="check its log for `handed back` and `a handler failed`, and run more copies of it",
                    durable=state.name,
                )
            )
    return findings or [ok("stage-late", "every stage has handled all messages older than a minute")]


async def queues(context: CheckContext) -> list[Finding]:
    """Report queues without workers (`queue-unattended`)."""
    findings = [
        bad(
            "queue-unattended",
            f"{counted(queue.waiting, 'task')} in queue `{queue.name}`, and no worker requests tasks from it",
            means="their executions do not start",
            do=f"run a worker for it: `Worker(queues=[{queue.name!r}])`, `tocsin worker MODULE:ATTRIBUTE`",
            queue=queue.name,
        )
        for queue in context.status.queues
        if queue.is_unattended
    ]
    return findings or [ok("queue-unattended", "no tasks wait in a queue without a worker")]


async def paused(context: CheckContext) -> list[Finding]:
    """Report paused queues with tasks that wait (`queue-paused`)."""
    settings, log = context.target.settings, context.target.log
    waiting = {queue.name: queue.waiting for queue in context.status.queues}  # also of queues that only jobs name
    pauses = await pauses_of(log, sorted({*settings.matched_queues, *settings.bridged_queues, *waiting}))
    return [
        warn(
            "queue-paused",
            f"queue `{name}` is {pause}, since {utc_text(pause.since, 'seconds')}"
            + (f", and {counted(waiting[name], 'task')} wait" if waiting.get(name) else ""),
            means="its executions do not start until an operator resumes it",
            do=f"run `tocsin queues resume {name}` when the reason is over",
            queue=name,
        )
        for name, pause in pauses.items()
        if waiting.get(name, 1)
    ] or [ok("queue-paused", "no tasks wait in a paused queue")]


async def limits(context: CheckContext) -> list[Finding]:
    """Report queues whose oldest task waits for long because of a limit (`queue-held-back`)."""
    findings = [
        warn(
            "queue-held-back",
            f"limits hold back {counted(queue.held_back, 'task')} of queue `{queue.name}`, whose oldest task waits for "
            f"{context.age(queue.oldest).total_seconds():.0f} s",
            means="tasks wait although workers may be free",
            do=f"see the limits with `tocsin queues show {queue.name}`; raise a limit, or trigger the jobs less often",
            queue=queue.name,
        )
        for queue in context.status.queues
        if queue.oldest is not None and context.age(queue.oldest) >= HELD_LATE_AFTER and queue.held_back
    ]
    return findings or [ok("queue-held-back", "no limit holds back tasks for long")]


async def functions(context: CheckContext) -> list[Finding]:
    """Report queues of jobs that no worker reads, and functions that none has (`queue-unread`, `function-unserved`)."""
    target = context.target
    agents = await AgentRegistry(target.log, target.projections).agents()
    jobs = [registration.definition for registration in await context.registrations()]
    waiting = functions_waiting(context.status.queues)
    missing = unserved(jobs, agents, outside=target.settings.bridged_queues, waiting=waiting)
    queues = [each for each in missing if each.function is None]
    functions = [each for each in missing if each.function is not None]
    return [
        warn(
            "queue-unread",
            f"{counted(len(queues), 'queue')} of jobs without a worker: {_shown(queues)}",
            means="tasks of these jobs wait until a worker comes",
            do="start a worker for the queue, or correct the queue of the job",
            queues=[each.queue for each in queues[:MAX_LISTED]],
        )
        if queues
        else ok("queue-unread", "workers read the queues of all jobs"),
        warn(
            "function-unserved",
            f"{counted(len(functions), 'function')} without a live agent: {_shown(functions)}",
            means="tasks of these functions wait until an agent with a handler comes",
            do="start a worker with the handler, or correct the function or the queue of the job",
            functions=[each.function for each in functions[:MAX_LISTED]],
        )
        if functions
        else ok("function-unserved", "workers have the functions of all jobs and tasks whose queue they read"),
    ]


async def history(context: CheckContext) -> Finding | None:
    """Report a history that lags or does not answer (`history-behind`, `history-unreachable`)."""
    if (reason := context.status.troubles.get("history")) is not None:
        return bad(
            "history-unreachable",
            f"the history does not answer: {reason}",
            means="executions and dead letters cannot be listed; jobs run on",
            do="check `database.url` (`tocsin config show`) and the database",
        )
    place = context.status.history
    if place is None:
        return None  # there is no log
    age = timedelta() if place.since is None else context.age(place.since)
    text = f"the history is at {place.place} of {place.newest}"
    if age < HISTORY_LATE_AFTER:
        return ok("history-behind", text)
    if not place.place and (url := context.target.settings.database.url).startswith(SQLITE):
        return warn(
            "history-behind",
            f"nothing of this installation is recorded in {url.removeprefix(SQLITE)}",
            means="no recorder ever ran, or it writes another history than this program reads",
            do="name the recorder's history by `--data-dir`, TOCSIN_DATA_DIR or TOCSIN_DATABASE_URL; without a recorder run `tocsin run recorder`",
        )
    return (bad if age >= HISTORY_BAD_AFTER else warn)(
        "history-behind",
        f"{text}: {age.total_seconds():.0f} s behind",
        means="lists of executions lack what happened since; jobs run on, and nothing is lost",
        do="run `tocsin run recorder`, and check its log for `not recorded`",
    )


def _shown(missing: Sequence[Unserved]) -> str:
    return "; ".join(map(str, missing[:SHOWN]))


def _backlog(context: CheckContext, durable: Durable) -> str:
    state = durable.state
    age = "" if durable.oldest is None else f", the oldest for {context.age(durable.oldest).total_seconds():.0f} s"
    return f"{state.pending} wait, {state.ack_pending} are out{age}"


_ANSWERED: Final[frozenset[DeliveryState]] = FAILED | {"delivered"}
MAX_CHANNELS: Final = 10


async def notified(context: CheckContext) -> Finding:
    """Report channels that did not accept the newest message (`notifications-not-accepted`)."""
    newest: dict[str, NotificationRow] = {}
    for row in (await notifications(context.target.log, NotificationQuery(limit=MAX_NOTIFICATIONS))).rows:
        if row.state in _ANSWERED:
            newest.setdefault(row.channel, row)
    refused = [row for _, row in sorted(newest.items()) if row.state in FAILED]
    if not refused:
        return ok("notifications-not-accepted", "no receiver refused the newest notification of its channel")
    examples = ", ".join(f"`{row.channel}` ({row.error})" for row in refused[:MAX_CHANNELS])
    return bad(
        "notifications-not-accepted",
        f"receivers did not accept notifications: {examples}",
        means="people do not hear of what happens to jobs",
        do="correct the channel in `notifications.channels`, then run `tocsin notifications test CHANNEL`",
        channels=[row.channel for row in refused[:MAX_CHANNELS]],
    )
