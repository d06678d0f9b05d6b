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

from .buckets import (
    ARCHIVE_STATE,
    ARCHIVER_LEASE,
    INSTALLATION_KEY,
    RECOVERER_LEASE,
    TICKER_LEASE,
    Bucket,
    cursor,
    lock_key,
)
from .codec import DecodeError, decode
from .durables import (
    DAG_ADVANCER,
    DAG_ADVANCER_REPORTS,
    DAG_ADVANCER_TIMERS,
    JOB_EXECUTORS,
    LOCK_KEEPER,
    LOCK_KEEPER_ENDS,
    MQ_BRIDGE,
    RECOVERER,
    REPLAYS,
    RETRIER,
    executors,
    queue_of,
)
from .filters import (
    ENDINGS,
    OPENINGS,
    about,
    all_of,
    audited,
    claims,
    every,
    is_ending,
    leadership,
    matches,
    reports,
    reports_on,
    tasks,
)
from .parts import completed, entity_of, fact_of, job_of, to_cancel
from .paths import (
    acquisitions,
    admissions,
    announcement,
    cancel,
    definition,
    delay,
    handed_over,
    of_ledger,
    subject_of,
    terminal,
    trigger,
)
from .scopes import dead_letter, execution, ledger, lock, scope_around, scope_of
from .streams import ANNOUNCED, CAPTURED, Stream, stream_of
from .tokens import ABSENT, ANY, DEFAULT_QUEUE, WILDCARDS, name, token

__all__ = [
    "ABSENT",
    "ANNOUNCED",
    "ANY",
    "ARCHIVER_LEASE",
    "ARCHIVE_STATE",
    "CAPTURED",
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
    "OPENINGS",
    "RECOVERER",
    "RECOVERER_LEASE",
    "REPLAYS",
    "RETRIER",
    "TICKER_LEASE",
    "WILDCARDS",
    "Bucket",
    "DecodeError",
    "Stream",
    "about",
    "acquisitions",
    "admissions",
    "all_of",
    "announcement",
    "audited",
    "cancel",
    "claims",
    "completed",
    "cursor",
    "dead_letter",
    "decode",
    "definition",
    "delay",
    "entity_of",
    "every",
    "execution",
    "executors",
    "fact_of",
    "handed_over",
    "is_ending",
    "job_of",
    "leadership",
    "ledger",
    "lock",
    "lock_key",
    "matches",
    "name",
    "of_ledger",
    "queue_of",
    "reports",
    "reports_on",
    "scope_around",
    "scope_of",
    "stream_of",
    "subject_of",
    "tasks",
    "terminal",
    "to_cancel",
    "token",
    "trigger",
]
