"""Every name on the wire: streams, subjects, scopes, durables, buckets. Nothing else spells one.

Subjects here are relative: the adapter puts the installation's root token (`tocsin`) in front when it talks to NATS and
takes it off again, and maps the public prefixes (`cron.trigger`, `cron.cancel`, `mq`) onto them.

    ledger.<job>.<fact>                                          one job: its definitions and its time
    execution.<job>.<id>.<decision>[.<step>[.<attempt>[.<...>]]]  one execution
    lock.<job>[.<shard>].<fact>                                  one lock
    cron.triggered.<job>, cron.skipped.<job>, cron.missed.<job>  republished to the public as they are
    leadership.<lease>.<fact>                                    who led, for whoever asks why nothing happened
    dead-letter.<job>.<id>.<fact>[.<number>]
    trigger.<job>, cancel.<job>.<id>, report.<job>.<id>.<outcome>.<step>.<attempt>.<delivery>, timer.<job>.<id>.retry.<step>.<attempt>   inputs
    enqueue.<job>.<id>                                           inputs too: jobs that are registered nowhere
    delay.<job>.<id>.retry.<step>.<attempt>                      the server's schedules, whose targets are timers
    mq.scheduled.<job>, mq.scheduler.complete.<job>.<id>         tasks and answers of executors outside, as hip-62 names them

`trigger.>` and `cancel.>` lie in the ledger's stream: the log republishes under `cron.`, and a stream may not republish
into subjects that it captures itself.

    tokens, streams, durables, buckets     the names that are not subjects
    building                               from a message to its subject; parsing and decoding go back
    scopes                                 what one guard covers
    filters                                what is to be read
"""

from .codec import DecodeError, decode, entity_of, event_type, job_of, parse_cancel, parse_completion
from .filters import (
    ENDINGS,
    OPENINGS,
    audit_filters,
    claims,
    filter_for,
    filters_of,
    is_ending,
    job_filters,
    leadership,
    matches,
    reports,
    reports_on,
    tasks,
)
from .names import (
    ANY,
    ARCHIVE_STATE,
    ARCHIVER_LEASE,
    DAG_ADVANCER,
    DAG_ADVANCER_REPORTS,
    DAG_ADVANCER_TIMERS,
    DEFAULT_QUEUE,
    INSTALLATION_KEY,
    JOB_EXECUTORS,
    LOCK_KEEPER,
    LOCK_KEEPER_ENDS,
    MQ_BRIDGE,
    NO_DELIVERY,
    PUBLIC_EVENTS,
    RECOVERER,
    RECOVERER_LEASE,
    REPLAYS,
    RETRIER,
    STREAM_SUBJECTS,
    TICKER_LEASE,
    WILDCARDS,
    Bucket,
    Stream,
    cursor,
    executor_durable,
    lock_key,
    name,
    queue_of,
    stream_of,
    token,
)
from .paths import (
    acquisitions,
    admissions,
    cancel,
    dead_letter,
    definition,
    delay,
    execution,
    execution_scope,
    ledger,
    ledger_subjects,
    lock,
    mq_tasks,
    public_event,
    scope_of,
    subject_of,
    terminal,
    trigger,
)

__all__ = [
    "ANY",
    "ARCHIVER_LEASE",
    "ARCHIVE_STATE",
    "DAG_ADVANCER",
    "DAG_ADVANCER_REPORTS",
    "DAG_ADVANCER_TIMERS",
    "DEFAULT_QUEUE",
    "ENDINGS",
    "INSTALLATION_KEY",
    "JOB_EXECUTORS",
    "LOCK_KEEPER",
    "LOCK_KEEPER_ENDS",
    "MQ_BRIDGE",
    "NO_DELIVERY",
    "OPENINGS",
    "PUBLIC_EVENTS",
    "RECOVERER",
    "RECOVERER_LEASE",
    "REPLAYS",
    "RETRIER",
    "STREAM_SUBJECTS",
    "TICKER_LEASE",
    "WILDCARDS",
    "Bucket",
    "DecodeError",
    "Stream",
    "acquisitions",
    "admissions",
    "audit_filters",
    "cancel",
    "claims",
    "cursor",
    "dead_letter",
    "decode",
    "definition",
    "delay",
    "entity_of",
    "event_type",
    "execution",
    "execution_scope",
    "executor_durable",
    "filter_for",
    "filters_of",
    "is_ending",
    "job_filters",
    "job_of",
    "leadership",
    "ledger",
    "ledger_subjects",
    "lock",
    "lock_key",
    "matches",
    "mq_tasks",
    "name",
    "parse_cancel",
    "parse_completion",
    "public_event",
    "queue_of",
    "reports",
    "reports_on",
    "scope_of",
    "stream_of",
    "subject_of",
    "tasks",
    "terminal",
    "token",
    "trigger",
]
