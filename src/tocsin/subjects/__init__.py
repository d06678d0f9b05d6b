"""Every name on the wire: streams, subjects, scopes, durables and buckets.

No other package spells such a name. Subjects here are relative: the NATS adapter adds the installation's root token and
the job's partition (`tocsin.0`) and removes them again, and it maps the public prefixes (`cron.trigger`, `cron.cancel`,
`mq`) onto them.

    ledger.<job>.<event>                                          a job: its definitions and its instants
    execution.<job>.<id>.<event>[.<step>[.<attempt>[.<...>]]]     an execution
    execution.<job>.<id>.admitted.<step>.<attempt>[.<queue>]      an admission that is also the first task
    lock.<job>[.<shard>].<event>                                  a lock
    cron.triggered.<job>, cron.skipped.<job>, cron.missed.<job>   public events, republished unchanged
    leadership.<lease>.<event>                                    a leader lease
    agent.<name>.<id>.<event>                                     an agent; `all` in place of the id: its name
    dead-letter.<job>.<id>.<event>[.<number>]                     a dead letter
    trigger.<job>, cancel.<job>.<id>                              inputs: requests
    report.<job>.<id>.<outcome>.<step>.<attempt>.<delivery>       inputs: reports
    timer.<job>.<id>.retry.<step>.<attempt>                       inputs: timers
    enqueue.<job>.<id>                                            inputs: unregistered jobs
    output.<job>.<id>.line                                        output: lines of handlers
    progress.<job>.<id>.<step>                                    output: progress of steps
    heartbeat.<job>.<id>.<step>.<attempt>                         output: details for the next attempt
    delay.<job>.<id>.retry.<step>.<attempt>                       schedules of the server, whose targets are timers
    mq.scheduled.<job>, mq.scheduler.complete.<job>.<id>          tasks and answers of MQ executors (hip-62)
    mq.scheduler.cancel.<job>.<id>                                notices for MQ executors: the work is not needed

`agent.<name>.<id>.hold` and `task.<name>.<id>` are no stored subjects: on them agents send their hold lists and hear
commands. They have no partition (`ports.agents`).

`trigger.>` and `cancel.>` are in the stream of the ledger. The stream of the log republishes under `cron.`, and a
stream may not republish into subjects that it captures itself.

    names       names that are not subjects: streams, tokens, durables, buckets
    paths       subjects of messages, and the scopes that guards cover
    partitions  the partition of a job
    codec       from a subject and a body to a message
    filters     filters over many subjects
"""

from .codec import DecodeError, decode, entity_of, event_type, job_of, parse_cancel, parse_completion
from .filters import (
    ENDINGS,
    OPENINGS,
    RECORDED,
    agent_events,
    audit_filters,
    claims,
    filter_for,
    filters_of,
    is_ending,
    job_filters,
    leadership,
    matches,
    openings,
    reports,
    reports_of,
    reports_on,
    tasks,
)
from .names import (
    AGENT_KEEPER_LEASE,
    ANY,
    ARCHIVE_STATE,
    ARCHIVER_LEASE,
    DAG_ADVANCER,
    DAG_ADVANCER_REPORTS,
    DAG_ADVANCER_TIMERS,
    DEFAULT_QUEUE,
    INPUT_STREAMS,
    INSTALLATION_KEY,
    JOB_EXECUTORS,
    LAYOUT,
    LAYOUT_KEY,
    LOCK_KEEPER,
    LOCK_KEEPER_ENDS,
    MATCHER,
    MATCHER_LEASE,
    MQ_BRIDGE,
    MQ_BRIDGE_ENDS,
    NO_DELIVERY,
    OUTPUT_STREAMS,
    PARTITIONS,
    PUBLIC_EVENTS,
    RECOVERER,
    RECOVERER_LEASE,
    REPLAYS,
    RETRIER,
    STREAM_SUBJECTS,
    STREAMS,
    TICKER_LEASE,
    TIMEZONE_REPORT,
    TIMEZONE_REQUEST,
    WILDCARDS,
    Bound,
    Bucket,
    Stream,
    aside_key,
    cursor,
    executor_durable,
    heir_key,
    is_lease,
    lease_keys,
    lease_standing_aside,
    lock_key,
    name,
    partition,
    partition_of,
    partition_token,
    queue_of,
    stream_of,
    token,
)
from .paths import (
    acquisitions,
    admissions,
    agent,
    cancel,
    dead_letter,
    definition,
    delay,
    execution,
    execution_scope,
    heartbeat,
    is_lock,
    ledger,
    ledger_subjects,
    lines,
    lock,
    mq_cancel,
    mq_tasks,
    parse_agent,
    progress,
    public_event,
    scope_of,
    subject_of,
    terminal,
    trigger,
)

__all__ = [
    "AGENT_KEEPER_LEASE",
    "ANY",
    "ARCHIVER_LEASE",
    "ARCHIVE_STATE",
    "DAG_ADVANCER",
    "DAG_ADVANCER_REPORTS",
    "DAG_ADVANCER_TIMERS",
    "DEFAULT_QUEUE",
    "ENDINGS",
    "INPUT_STREAMS",
    "INSTALLATION_KEY",
    "JOB_EXECUTORS",
    "LAYOUT",
    "LAYOUT_KEY",
    "LOCK_KEEPER",
    "LOCK_KEEPER_ENDS",
    "MATCHER",
    "MATCHER_LEASE",
    "MQ_BRIDGE",
    "MQ_BRIDGE_ENDS",
    "NO_DELIVERY",
    "OPENINGS",
    "OUTPUT_STREAMS",
    "PARTITIONS",
    "PUBLIC_EVENTS",
    "RECORDED",
    "RECOVERER",
    "RECOVERER_LEASE",
    "REPLAYS",
    "RETRIER",
    "STREAMS",
    "STREAM_SUBJECTS",
    "TICKER_LEASE",
    "TIMEZONE_REPORT",
    "TIMEZONE_REQUEST",
    "WILDCARDS",
    "Bound",
    "Bucket",
    "DecodeError",
    "Stream",
    "acquisitions",
    "admissions",
    "agent",
    "agent_events",
    "aside_key",
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
    "heartbeat",
    "heir_key",
    "is_ending",
    "is_lease",
    "is_lock",
    "job_filters",
    "job_of",
    "leadership",
    "lease_keys",
    "lease_standing_aside",
    "ledger",
    "ledger_subjects",
    "lines",
    "lock",
    "lock_key",
    "matches",
    "mq_cancel",
    "mq_tasks",
    "name",
    "openings",
    "parse_agent",
    "parse_cancel",
    "parse_completion",
    "partition",
    "partition_of",
    "partition_token",
    "progress",
    "public_event",
    "queue_of",
    "reports",
    "reports_of",
    "reports_on",
    "scope_of",
    "stream_of",
    "subject_of",
    "tasks",
    "terminal",
    "token",
    "trigger",
]
