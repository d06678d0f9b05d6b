"""Names that are not subjects: streams, tokens, durables and buckets.

There is one partition. With more, a job's partition is the FNV-1a hash (32 bits) of its token modulo their number, as a
subject mapping of NATS with `{{partition(N,1)}}` computes it.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

DEFAULT_QUEUE: Final = "default"
NO_CLAIM: Final = "-"  # the report names no claim
ANY: Final = "*"
"""The wildcard for one token. It is no name.

A server stores messages published under it, and a filter of it matches every name.
"""
REST: Final = ">"
MAX_NAME_LENGTH: Final = 255
"""Characters of the name of a job or of an id. A message published under a longer one is about nothing that exists."""
WILDCARDS: Final = frozenset((ANY, REST))


@lru_cache(maxsize=16_384)
def token(name: str) -> str:
    """Return the name of a job or queue as one subject token.

    This is reversible, because names contain no underscore.
    """
    return name.replace(".", "_")


def name(of_token: str) -> str:
    """Return the name that `token` converted."""
    return of_token.replace("_", ".")


def dotted(job: str) -> str:
    """Return a name with its dots, as hip-62 writes it.

    A name whose dots give an empty token becomes one token.
    """
    return job if all(job.split(".")) else token(job)


class Stream(StrEnum):
    """The streams, and the two kinds of decisions, which are in commits."""

    LEDGER = "LEDGER"
    INPUTS = "INPUTS"
    REQUESTS = "REQUESTS"
    REPORTS = "REPORTS"
    LOG = "LOG"
    MQ = "MQ"
    OUTPUT = "OUTPUT"
    PROGRESS = "PROGRESS"
    NOTIFICATIONS = "NOTIFICATIONS"


STREAMS: Final = (
    *(Stream.LEDGER, Stream.INPUTS, Stream.REQUESTS),
    *(Stream.REPORTS, Stream.LOG),
)
"""The streams that exports, audits and the archive cover, causes before their effects.

A reader of all of them reads their ends in reverse, so that the cause of every effect it reads lies before its stream's
end. The stream of the MQ bridge is a queue: the log has what it holds.
"""

COMMITS: Final = "COMMITS"
"""The stream of the log of commits, by the part of its name after the root."""
DECISION_STREAMS: Final = (Stream.LEDGER, Stream.LOG)
"""The streams of decisions, which only stages, the API and operators store."""
SERVER_STREAMS: Final = tuple(stream for stream in Stream if stream is not Stream.LEDGER)
"""The streams on the server beside that of commits, which has all decisions. `LOG` has the public events alone."""
INPUT_STREAMS: Final = frozenset({Stream.INPUTS, Stream.REQUESTS, Stream.REPORTS})
"""Streams of what others than the stages publish. They are limited in size, and refuse messages when they are full.

Programs outside have a stream of their own: they can neither fill the stream of the API nor use up its message ids.
"""
MAX_INPUT_SIZE: Final = 262_144
"""The largest message of a stream of inputs, in bytes with its headers.

The event that a stage makes from an input has more fields. It must fit a message of the stage's own.
"""
MAX_REQUEST_SIZE: Final = MAX_INPUT_SIZE - 1_024
"""The largest request, in bytes: there is room for its headers, and for the fields that are stored beside it."""
MAX_CHANGE_SIZE: Final = 790_528
"""The largest message of the stream of requests, in bytes with its headers: a change has the size of a commit."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The limits of each subject of a stream of output."""

    messages: int
    """The number of messages of a subject that the stream keeps, the newest."""
    size: int
    """The largest message, in bytes with its headers."""


OUTPUT_STREAMS: Final = {Stream.OUTPUT: Bound(200, 1_310), Stream.PROGRESS: Bound(1, 20_480)}
"""Streams of what running attempts say. They drop their oldest messages, and no decision rests on them.

200 lines of at most 1,310 bytes are 256 KB for each attempt.
"""


def stream_names(root: str) -> frozenset[str]:
    """Return the names of the streams of an installation on the server."""
    main = (f"{root.upper().replace('-', '_')}_{stream}" for stream in SERVER_STREAMS)
    return frozenset((f"{root}_{COMMITS}", *main))


def captured_stream(root: str) -> str:
    """Return the name of the stream of messages that programs publish without one: `TOCSIN_EVENTS`."""
    return f"{root.upper().replace('-', '_')}_EVENTS"


LAYOUT: Final = 12
"""The number of the layout of streams and subjects, stored with each stream.

A change to the streams of stored messages, or to their subjects, needs a new number; no version reads another layout. A
subject that a stream stores in addition needs none: `tocsin init` adds it.
"""
LAYOUT_KEY: Final = "tocsin.layout"
"""The key of the number in a stream's metadata."""

STREAM_SUBJECTS: Final[dict[Stream, tuple[str, ...]]] = {
    Stream.LEDGER: (
        "ledger.>",
        "agent.>",
        "queue.>",
        "repair.>",
        "shards.>",
        "policy.>",
        "silences.>",
        "namespaces.>",
    ),
    Stream.INPUTS: ("public.trigger.>", "public.cancel.>", "outside.*.trigger.>", "outside.*.cancel.>"),
    Stream.REQUESTS: ("trigger.>", "cancel.>", "enqueue.>", "change.>"),
    Stream.LOG: ("execution.>", "lock.>", "cron.>", "dead-letter.>", "ownership.>", "unique.>"),
    Stream.REPORTS: ("report.>",),
    Stream.MQ: ("mq.scheduled.>", "mq.team.>", "mq.scheduler.complete.>", "mq.scheduler.cancel.>"),
    Stream.OUTPUT: ("output.>", "event.>"),
    Stream.PROGRESS: ("progress.>", "heartbeat.>"),
    Stream.NOTIFICATIONS: ("notification.>",),
}
"""The subjects that each stream stores."""
PUBLIC_EVENTS: Final = "cron.>"
PUBLIC_INPUTS: Final = "public."
"""The beginning of the subjects on which programs publish that have no account of their own.

The rest is the subject of the same request of the API.
"""
OUTSIDE_INPUTS: Final = "outside."
"""The beginning of the subjects to which the server maps what programs publish in accounts of their own.

The name of the program follows, and the subject of the same request of the API.
"""


OUTSIDE_SUBJECTS: Final = (
    *(f"{OUTSIDE_INPUTS}*.{kind}.>" for kind in ("trigger", "cancel")),
    *("report.>", "output.>", "progress.>", "heartbeat.>", "mq.scheduler.complete.>"),
)
"""The subjects under which streams store what users outside publish."""


def request_subject(subject: str) -> str:
    if subject.startswith(OUTSIDE_INPUTS):
        return subject.split(".", 2)[2]
    return subject.removeprefix(PUBLIC_INPUTS)


_KINDS: Final = {
    relative.partition(".")[0]: stream for stream, captured in STREAM_SUBJECTS.items() for relative in captured
}


SCOPE_TOKENS: Final = {
    "ledger": 2,
    "execution": 3,
    "dead-letter": 3,
    "agent": 3,
    "queue": 2,
    "repair": 3,
    "ownership": 2,
    "shards": 2,
    "policy": 2,
    "namespaces": 2,
    "silences": 2,
    "notification": 3,
    "unique": 3,
}
"""The number of tokens of a scope before its wildcard, by kind of event."""


def stream_of(subject: str) -> Stream:
    return _KINDS.get(subject.partition(".")[0], Stream.LOG)


LOCK_KEEPER: Final = "lock-keeper"
LOCK_KEEPER_ENDS: Final = "lock-keeper-ends"
DAG_ADVANCER: Final = "dag-advancer"
DAG_ADVANCER_REPORTS: Final = "dag-advancer-reports"
DAG_ADVANCER_FAILURES: Final = "dag-advancer-failures"
RETRIER: Final = "retrier"
RETRIER_HEARTBEATS: Final = "retrier-heartbeats"
MATCHER: Final = "matcher"
MQ_BRIDGE: Final = "mq-bridge"
MQ_BRIDGE_COMPLETIONS: Final = "mq-bridge-completions"
MQ_BRIDGE_ENDS: Final = "mq-bridge-ends"
RECOVERER: Final = "recoverer"
LEASE_KEEPER: Final = "lease-keeper"
"""The workers that reports of these stages name."""
PLANNER: Final = "planner"
"""The durable of instants."""
DEPENDENCY_KEEPER: Final = "dependency-keeper"
ACKNOWLEDGEMENTS: Final = "acknowledgements"
"""The key of the agent keeper's cursor in the log, which it follows without a durable."""
JOB_EXECUTORS: Final = "job-executors"
NOTIFIER_OPENINGS: Final = "notifier-openings"
NOTIFIER: Final = "notifier"
"""The durable of the notifier, and the key of the cursor from which it follows notifications."""
TRIGGERS: Final = "planner-triggers"
ENQUEUED: Final = "planner-enqueued"
REPLAYS: Final = "planner-replays"
PUBLIC_TRIGGERS: Final = "planner-public-triggers"
PUBLIC_CANCELS: Final = "dag-advancer-public-cancels"
"""The durables of the requests of programs outside."""


class Bucket(StrEnum):
    """The KV buckets: projections and leases only."""

    DEFINITIONS = "definitions"
    LOCKS = "locks"
    LEADER = "leader"
    CURSORS = "cursors"
    INSTALLATION = "installation"
    TOKENS = "tokens"
    ANSWERS = "answers"
    TIMEZONES = "timezones"
    AGENTS = "agents"
    QUEUES = "queues"
    CHECKPOINTS = "checkpoints"
    SNAPSHOTS = "snapshots"
    FOREIGN = "foreign"
    TRIGGERS = "triggers"


TICKER_LEASE: Final = "ticker"
RECOVERER_LEASE: Final = "recoverer"
ARCHIVER_LEASE: Final = "archiver"
AGENT_KEEPER_LEASE: Final = "agent-keeper"
MATCHER_LEASE: Final = "matcher"
DEPENDENCY_KEEPER_LEASE: Final = "dependency-keeper"
NOTARY_LEASE: Final = "notary"
NOTIFIER_LEASE: Final = "notifier"
_ASIDE: Final = "aside"
_HEIR: Final = "heir"


PROCESS: Final = "process"
"""The first token of the keys in `leader` of the processes that read the log of commits."""


def process_key(name: str) -> str:
    """Return the key in `leader` of a process that reads the log of commits."""
    return f"{PROCESS}.{_readable(name)}"


def aside_key(lease: str, holder: str) -> str:
    """Return the key in `leader` by which a candidate says that it stands aside."""
    return f"{lease}.{_ASIDE}.{_readable(holder)}"


def _readable(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c == "-") else "_" for c in name)


def heir_key(lease: str) -> str:
    """Return the key in `leader` that requests a lease from a leader of last resort."""
    return f"{lease}.{_HEIR}"


def is_lease(key: str) -> bool:
    """Return whether a key in `leader` is a lease itself."""
    return "." not in key


def lease_standing_aside(key: str) -> str | None:
    """Return the lease of a key of `aside_key`; None: it is another key."""
    lease, _, rest = key.partition(".")
    return lease if rest.startswith(f"{_ASIDE}.") else None


ANNOUNCED: Final = "announced"
"""The key in `cursors` that holds the number of the newest public event that is announced."""
LOG_ARCHIVE: Final = "log-archive"
"""The key in `cursors` that holds the progress of the archive."""
INSTALLATION_KEY: Final = "report-key"
TIMEZONE_REQUEST: Final = "request"
"""The key in `timezones` whose changes make every process read its time-zone data again."""
TIMEZONE_REPORT: Final = "report"
"""The key in `timezones` that holds the ticker's report of the instants that moved."""


def cursor(stream: Stream, durable: str | None = None) -> str:
    """Return the key in `cursors` for a durable, or for a whole stream.

    Its value is the sequence up to which everything is decided.
    """
    return stream.value if durable is None else f"{stream.value}.{durable}"


BACKLOG_KEYS: Final = "*"
"""The keys in `queues` for backlogs: each is a queue as one token. Jobs may bring any number of other keys, for rates."""


def rate_key(queue: str) -> str:
    """Return the key in `queues` for the used part of a queue's rate."""
    return f"rate.{token(queue)}"


def start_rate_key(digest: str) -> str:
    """Return the key in `queues` for the rate of a group of tasks."""
    return f"rate.starts.{digest}"


def daily_use_key(namespace: str) -> str:
    """Return the key in `queues` for the used part of a namespace's daily quotas.

    `*` makes a filter for all namespaces.
    """
    return f"use.{namespace}"


def changed_bytes_key(namespace: str) -> str:
    """Return the key in `queues` for the bytes of decisions on what a namespace has.

    `*` makes a filter for all namespaces.
    """
    return f"changed.{namespace}"


_OUTSIDE: Final = "outside."


def outside_key(kind: str, worker: str) -> str:
    """Return the key in `agents` of an unregistered worker, whose name is a token."""
    return f"{_OUTSIDE}{kind}.{worker}"


def is_outside_key(key: str) -> bool:
    """Check whether a key in `agents` names an unregistered worker.

    The keys of registered agents, `<name>.<id>`, have one dot.
    """
    return key.startswith(_OUTSIDE) and key.count(".") > 1


def batch_key(trigger_id: str) -> str:
    """Return the key in `triggers` of the last batch of a trigger.

    `trigger_id`: the name of its durable.
    """
    return f"batch.{trigger_id}"


def debounce_key(window: str) -> str:
    """Return the key in `triggers` of the window of a debounced key of events."""
    return f"debounce.{window}"


def ends_key(trigger_id: str) -> str:
    """Return the key in `triggers` of the place of a trigger by ends of executions.

    `trigger_id`: the name of its durable; `>` makes a filter for all triggers.
    """
    return f"ends.{trigger_id}"


def key_count_key(trigger_id: str) -> str:
    """Return the key in `triggers` of the number of debounced keys of a trigger.

    `trigger_id`: the name of its durable.
    """
    return f"keys.{trigger_id}"


def foreign_key(stream: str, sequence: int) -> str:
    """Return the key in `foreign` of a message that no stage stored."""
    return f"{stream}.{sequence}"


def checkpoint_page(stream: Stream, number: int) -> str:
    """Return the key in `checkpoints` of a page of a stream, from 1."""
    return f"{stream.value}.{number:08}"


def lock_key(job: str) -> str:
    """Return the key that shows a job's lock (hip-62, Distributed Locking)."""
    return f"scheduler.lock.{dotted(job)}"


PARTITIONS: Final = 1
"""The number of partitions that streams, stages and history support."""
_OFFSET: Final = 0x811C9DC5
_PRIME: Final = 0x01000193
_MASK: Final = 0xFFFFFFFF


@lru_cache(maxsize=16_384)
def partition_of(job_token: str, partitions: int) -> int:
    """Return the number of a job's partition, from 0.

    `job_token` is the job's name as `token` converts it.
    """
    digest = _OFFSET
    for byte in job_token.encode():
        digest = (digest ^ byte) * _PRIME & _MASK
    return digest % partitions


def partition(subject: str) -> int:
    token = partition_token(subject, PARTITIONS)
    return 0 if token == ANY else int(token)


def partition_token(relative: str, partitions: int) -> str:
    """Return the partition in a subject or filter.

    It is the wildcard for a filter over all jobs. Events of agents, queues, repairs, resources, silences and the policy belong to partition 0.
    """
    if partitions == 1:
        return "0"
    kind, *tokens = request_subject(relative).split(".")
    if kind in {"agent", "queue", "repair", "ownership", "shards", "policy", "namespaces", "silences"}:
        return "0"
    if kind == "cron":
        del tokens[0]
    if not tokens or tokens[0] in WILDCARDS:
        return ANY
    match kind:  # the subject of a request may contain the dots of a name
        case "trigger":
            job = "_".join(tokens)
        case "cancel":
            job = "_".join(tokens[:-1])
        case _:
            job = tokens[0]
    return str(partition_of(job, partitions))
