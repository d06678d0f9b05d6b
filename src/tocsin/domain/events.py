"""Every fact that Tocsin records, every input that it takes, every event that it shows: the one source of `schemas/`.

Facts are in the past tense, immutable, and a storage format: a released class only ever gains fields with defaults; a
breaking change is a new class with a new `v`. Times are aware UTC datetimes, durations seconds.
"""

from base64 import b64encode
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Generic, Literal, Self, TypeAlias, TypeVar, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, model_validator

from .definition import JobDefinition, RetryPolicy

TriggerKind: TypeAlias = Literal["cron", "manual", "api", "event", "replay", "recovery", "backfill"]
MADE_UP: Final = frozenset({"replay", "backfill"})
"""Triggers by which an operator makes up for what was not done."""

Input: TypeAlias = dict[str, JsonValue]
Sequence: TypeAlias = Annotated[int, Field(ge=0)]

MAX_BODY: Final = 262_144
"""Bytes of a message that its dead letter keeps: anybody may send up to what the server takes, and base64 adds a third."""
MAX_REASON: Final = 4_096
"""Characters of the reason that it keeps: one input can be wrong in thousands of ways."""


class Message(BaseModel):
    """What travels: frozen, and open to fields that a newer version adds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def encode(self) -> bytes:
        """The body on the wire: JSON without what is absent."""
        return self.model_dump_json(exclude_none=True).encode()


M_co = TypeVar("M_co", bound=Message, covariant=True)


@dataclass(frozen=True, slots=True)
class Recorded(Generic[M_co]):
    """A message as the log stored it: `sequence` in its stream, `time` (UTC) by the log's clock."""

    message: M_co
    subject: str
    sequence: int
    time: datetime
    message_id: str | None = None


class Actor(Message):
    """Who asked, for the audit trail (hip-62, Audit Trail)."""

    identity: str
    source: str | None = None


class Failure(Message):
    """Why an attempt did not succeed."""

    type: str
    message: str = ""
    traceback: str | None = None
    retryable: bool = True
    code: str | None = None
    """What an executor of the Open Job Spec calls it (ojs-errors)."""
    details: dict[str, JsonValue] | None = None


# --- the ledger of a job: its definitions and its time ---------------------------------------------------------------


class LedgerFact(Message):
    """A fact about one job as a whole. `previous` chains the definition facts, so that a reader sees a gap."""

    v: Literal[1] = 1
    job: str


class DefinitionFact(LedgerFact):
    """What holds for the job from the moment that this is stored.

    Each tells the whole (which definition, paused or not) and names its `previous` one by sequence (0: none), so that
    whoever holds only the newest can go back fact by fact.
    """

    previous: Sequence = 0
    by: Actor | None = None
    reason: str | None = None


class Defined(DefinitionFact):
    """The job has this definition from now on; whether it is paused stays as it was."""

    type: Literal["defined"] = "defined"
    definition: JobDefinition
    paused: bool = False
    created_at: datetime | None = None
    """When the job was registered first (UTC); None: by this very fact."""
    created_by: str | None = None
    """The identity of who did; None: whoever this fact names, if it is the first, else nobody said."""


class Paused(DefinitionFact):
    """Instants pass without firing from now on. `definition` is the sequence of the definition in force."""

    type: Literal["paused"] = "paused"
    definition: Sequence


class Resumed(DefinitionFact):
    """Instants fire again from now on; what passed while paused stays passed."""

    type: Literal["resumed"] = "resumed"
    definition: Sequence


class Deleted(DefinitionFact):
    """The job is gone; its log remains."""

    type: Literal["deleted"] = "deleted"


class Due(LedgerFact):
    """One instant that the schedule names has come and is to be decided on.

    `dst_skip`: a local time that the clocks left out falls on the same instant; that one is skipped.
    """

    type: Literal["due"] = "due"
    scheduled_time: datetime
    definition: Sequence
    catch_up: bool = False
    dst_skip: bool = False


PassedReason: TypeAlias = Literal["paused", "dst_skip", "missed", "superseded", "throttled"]


class Passed(LedgerFact):
    """A span of time, (start, until], is over without firing: `count` instants in it did not fire, and why.

    `scheduled_times` names them where the public is told of each (`paused`, `dst_skip`). For another reason it names the local
    times that the clocks left out and that fall on instants of the span; those are not counted.
    """

    type: Literal["passed"] = "passed"
    start: datetime
    until: datetime
    reason: PassedReason
    count: int
    definition: Sequence
    scheduled_times: tuple[datetime, ...] = ()


# --- who led ---------------------------------------------------------------------------------------------------------


class LeadershipFact(Message):
    """A fact about a lease: who may act, `at` an instant by the holder's clock. Nobody decides on it; it explains a gap."""

    v: Literal[1] = 1
    lease: str
    holder: str
    at: datetime


class LeadershipGained(LeadershipFact):
    """The holder leads from now on. `last_sign`: when it was last seen, by this one, that somebody led before."""

    type: Literal["gained"] = "gained"
    last_sign: datetime | None = None


class LeadershipReleased(LeadershipFact):
    """The holder gave the lease back."""

    type: Literal["released"] = "released"


class LeadershipLost(LeadershipFact):
    """The holder found that it does not lead any more; `last_sign` is when it last knew that it did."""

    type: Literal["lost"] = "lost"
    last_sign: datetime


# --- an execution ----------------------------------------------------------------------------------------------------


class PlannedStep(Message):
    """A step with everything resolved: what the executor is asked to do, and how often.

    Without an input, or args, of its own it is given the plan's.
    """

    name: str
    function: str
    depends_on: tuple[str, ...] = ()
    timeout: float
    queue: str = "default"
    input: Input | None = None
    args: tuple[JsonValue, ...] | None = None
    retry: RetryPolicy = RetryPolicy()


class Plan(Message):
    """What an execution will do: taken from the definition in force once, so that a later edit changes no running one."""

    definition: Sequence
    steps: tuple[PlannedStep, ...]
    input: Input = {}
    args: tuple[JsonValue, ...] = ()
    overlap_policy: Literal["skip", "allow", "cancel_previous", "enqueue"] = "skip"
    dead_letter: bool = False
    execution_timeout: float | None = None
    cron_expression: str | None = None
    timezone: str = "UTC"
    tags: tuple[str, ...] = ()
    meta: dict[str, JsonValue] = {}
    start_at: datetime | None = None
    """Nothing is dispatched before."""
    expires_at: datetime | None = None
    """No executor is given anything from then on (ojs-core §5.5)."""


class ExecutionFact(Message):
    """A fact about one execution."""

    v: Literal[1] = 1
    job: str
    execution_id: str


class Requested(ExecutionFact):
    """What `planned` and `admitted` both say, so that each can be understood alone."""

    scheduled_time: datetime
    trigger: TriggerKind
    plan: Plan
    by: Actor | None = None
    catch_up: bool = False
    replay_of: str | None = None
    """The dead letter that is replayed; its id is that of the execution that failed, if it was one."""
    backfill: str | None = None
    """The name of the backfill that it is part of."""


class Planned(Requested):
    """The execution is wanted; whether it may run is for the lock keeper to say."""

    type: Literal["planned"] = "planned"


class Admitted(Requested):
    """The execution may run. `fence` is the fencing token of its lock, absent where no lock was asked.

    `recovered_at`: when it was last found lost before that, if ever.
    """

    type: Literal["admitted"] = "admitted"
    fence: Sequence | None = None
    recovered_at: datetime | None = None


SkipReason: TypeAlias = Literal["overlap_skip", "disabled", "dst_skip"]


class Skipped(ExecutionFact):
    """The execution does not run (terminal): another one is active, or its instant passed without firing."""

    type: Literal["skipped"] = "skipped"
    reason: SkipReason
    scheduled_time: datetime
    trigger: TriggerKind
    definition: Sequence
    cron_expression: str | None = None
    timezone: str = "UTC"
    active_execution_id: str | None = None


class Dispatched(ExecutionFact):
    """The task: the intent to run one attempt of one step, and at the same time the message that executors take.

    `upstream` holds the results of the steps that it depends on; those that would have made the task too large for a
    message are named in `upstream_left_out`. A task of an execution that was found lost and recovered says so, with the
    instant that it was scheduled for and when it was recovered (cloacina, recovery context).
    """

    type: Literal["dispatched"] = "dispatched"
    step: str
    attempt: int
    max_attempts: int
    function: str
    queue: str = "default"
    input: Input = {}
    args: tuple[JsonValue, ...] = ()
    upstream: dict[str, JsonValue] = {}
    upstream_left_out: tuple[str, ...] = ()
    timeout: float
    scheduled_time: datetime
    trigger: TriggerKind
    fence: Sequence | None = None
    token: str
    meta: dict[str, JsonValue] = {}
    is_recovery: bool = False
    original_scheduled_time: datetime | None = None
    recovery_attempt_time: datetime | None = None


class Started(ExecutionFact):
    """An executor claimed an attempt; `delivery` tells this holder from any other.

    With a `lease` the claim stands for so many seconds beyond the newest sign of life, and then the task is for another;
    without, its queue watches over that.
    """

    type: Literal["started"] = "started"
    step: str
    attempt: int
    delivery: int
    worker: str
    lease: float | None = None


ReleasedReason: TypeAlias = Literal["lease_over", "handed_back"]


class Released(ExecutionFact):
    """A claim is given up before its attempt came to an end: the same attempt is dispatched anew, and is for another."""

    type: Literal["released"] = "released"
    step: str
    attempt: int
    delivery: int
    task: Sequence
    """The sequence of the task that was claimed."""
    reason: ReleasedReason


class RetryScheduled(ExecutionFact):
    """An attempt failed and the next one will be dispatched at `next_attempt_at`."""

    type: Literal["retry-scheduled"] = "retry-scheduled"
    step: str
    attempt: int
    error: Failure
    delay: float
    next_attempt_at: datetime


class Advanced(ExecutionFact):
    """A step completed and the execution goes on."""

    type: Literal["advanced"] = "advanced"
    step: str
    attempt: int
    result: JsonValue = None


ExhaustedReason: TypeAlias = Literal["attempts", "non_retryable"]


class Exhausted(ExecutionFact):
    """A step will not be tried again, while other steps are still running."""

    type: Literal["exhausted"] = "exhausted"
    step: str
    attempt: int
    error: Failure
    reason: ExhaustedReason


class Lost(Message):
    """What was the last to happen, and since when nothing follows it: for the execution as a whole, or for one step."""

    what: Literal["planned", "admitted", "dispatched", "retry-scheduled"]
    since: datetime
    step: str | None = None
    attempt: int | None = None


class Recovered(ExecutionFact):
    """The recoverer found that the execution was lost on its way to an executor, with proof; it is handed on anew.

    `recovery` counts, from 1. A task that is `lost` will not run any more, should it turn up again: another follows.
    """

    type: Literal["recovered"] = "recovered"
    recovery: int
    lost: tuple[Lost, ...]
    recovered_at: datetime


class Terminal(ExecutionFact):
    """The end of an execution: nothing follows. It repeats what those who react to the end need."""

    scheduled_time: datetime
    trigger: TriggerKind
    fence: Sequence | None = None
    step: str | None = None
    attempt: int | None = None


class Completed(Terminal):
    """Every step completed; `step` was the last."""

    type: Literal["completed"] = "completed"
    result: JsonValue = None


FailedReason: TypeAlias = ExhaustedReason | Literal["timed_out", "abandoned", "expired"]


class Failed(Terminal):
    """A step was exhausted; the steps behind it, `cancelled_steps`, never ran (hip-62, Job Dependency Graphs).

    `step` was the last to end; where it completed, `error` is of the step that was exhausted before. Without a step the
    execution as a whole was ended: it took longer than it may (`timed_out`), or was lost and not to be recovered
    (`abandoned`), or its time was over while no executor had it (`expired`).
    """

    type: Literal["failed"] = "failed"
    step_completed: bool = False
    error: Failure | None = None
    reason: FailedReason | None = None
    result: JsonValue = None
    cancelled_steps: tuple[str, ...] = ()
    dead_letter: bool = False


class Cancelled(Terminal):
    """Somebody ended it."""

    type: Literal["cancelled"] = "cancelled"
    by: Actor | None = None
    reason: str | None = None


# --- the lock of a job -----------------------------------------------------------------------------------------------


class LockFact(Message):
    """A fact about the lock of one job (and shard)."""

    v: Literal[1] = 1
    job: str
    shard: str | None = None
    execution_id: str


class Waiting(Message):
    """An execution that waits for the lock. `yields`: it makes up for the past, and lets what is asked for now go first."""

    execution_id: str
    scheduled_time: datetime
    yields: bool = False


class Acquired(LockFact):
    """The execution holds the lock; the sequence of this fact is its fencing token. `waiting` is who still waits."""

    type: Literal["acquired"] = "acquired"
    scheduled_time: datetime
    ttl: float
    waiting: tuple[Waiting, ...] = ()


class Queued(LockFact):
    """The execution waits for the lock, as `waiting` says in which order (ojs-cron §6.1, `enqueue`)."""

    type: Literal["queued"] = "queued"
    waiting: tuple[Waiting, ...]


# --- inputs: asked for, not yet decided ------------------------------------------------------------------------------


TriggerSource: TypeAlias = Literal["manual", "api", "event", "replay", "recovery", "backfill"]


class Trigger(Message):
    """Run this job now (on `cron.trigger.<job>`, or by the command line). Everything may be left out."""

    v: Literal[1] = 1
    type: Literal["trigger"] = "trigger"
    trigger: TriggerSource = "event"
    input: Input | None = None
    args: tuple[JsonValue, ...] | None = None
    by: Actor | None = None
    reason: str | None = None
    backfill: str | None = Field(default=None, min_length=1, max_length=255)
    """The name of the backfill that it is part of: together with `scheduled_time`, one execution."""
    scheduled_time: AwareDatetime | None = None
    """The instant of the past that it makes up for."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.backfill is None) != (self.scheduled_time is None):
            raise ValueError("`backfill` and `scheduled_time` go together: the name of the backfill, and which instant")
        return self


class Enqueued(Message):
    """Run this once: a job that is registered nowhere, with the id that its execution is to have (ojs-core, PUSH)."""

    v: Literal[1] = 1
    type: Literal["enqueued"] = "enqueued"
    execution_id: str
    definition: JobDefinition
    start_at: datetime | None = None
    expires_at: datetime | None = None
    by: Actor | None = None

    @model_validator(mode="after")
    def _asks_for_no_lock(self) -> Self:
        if self.definition.overlap_policy != "allow":
            raise ValueError("`definition.overlap_policy` must be `allow`: what is registered nowhere has no lock")
        return self


class CancelRequest(Message):
    """End this execution (on `cron.cancel.<job>.<execution>`). Everything may be left out; the subject says which one."""

    v: Literal[1] = 1
    type: Literal["cancel"] = "cancel"
    by: Actor | None = None
    reason: str | None = None


class Report(Message):
    """What became of one attempt, as its executor answers; `token` is the task's.

    Without a delivery the current one is meant.
    `claim` and `claimed_after` are the sequences of the `started` fact and of the fact before it: whoever folded the
    execution up to the latter needs not read the log again.
    """

    v: Literal[1] = 1
    type: Literal["report"] = "report"
    job: str
    execution_id: str
    outcome: Literal["completed", "failed"]
    step: str
    attempt: int
    token: str
    delivery: int | None = None
    result: JsonValue = None
    error: Failure | None = None
    worker: str | None = None
    claim: Sequence | None = None
    claimed_after: Sequence | None = None


class LeaseTimer(Message):
    """The lease of a claim is over, unless there was a sign of life: then it was put off.

    `task` is the sequence of the task that was claimed, under its `delivery`. `ends_attempt`: the attempt's time limit is over
    as well. Whoever sets the timer says so, since a claim is stored a moment after its timer is set, and by another clock.
    """

    v: Literal[1] = 1
    type: Literal["lease-timer"] = "lease-timer"
    job: str
    execution_id: str
    step: str
    attempt: int
    delivery: int
    task: Sequence
    ends_attempt: bool = False


class ExpiryTimer(Message):
    """An execution that nobody has started by now is not to be started any more."""

    v: Literal[1] = 1
    type: Literal["expiry-timer"] = "expiry-timer"
    job: str
    execution_id: str


class RetryTimer(Message):
    """The delay before `attempt` of a step is over."""

    v: Literal[1] = 1
    type: Literal["retry-timer"] = "retry-timer"
    job: str
    execution_id: str
    step: str
    attempt: int


# --- dead letters ----------------------------------------------------------------------------------------------------


class Attempt(Message):
    """One attempt as an operator wants to see it."""

    step: str
    attempt: int
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    error: Failure | None = None


class DeadLetterFact(Message):
    """A fact about one dead letter; its id is the execution's, or names the message that nobody could read."""

    v: Literal[1] = 1
    job: str
    id: str


class DeadLettered(DeadLetterFact):
    """An execution failed for good, with its whole history of attempts (hip-62, Dead Letter Handling)."""

    type: Literal["dead-lettered"] = "dead-lettered"
    execution_id: str
    scheduled_time: datetime
    trigger: TriggerKind
    input: dict[str, JsonValue] = {}
    attempts: tuple[Attempt, ...]
    last_error: Failure | None = None
    first_attempt: datetime
    last_attempt: datetime
    definition: Sequence = 0
    """The definition that it was planned by, with the input and the args of its plan (0: of an earlier version of us)."""
    plan_input: Input = {}
    plan_args: tuple[JsonValue, ...] = ()
    replay_of: str | None = None
    """The dead letter that the execution was a replay of."""


class Refused(DeadLetterFact):
    """A message that could not be used: kept with its bytes (base64) and the reason.

    Both are cut off where they would make this too large to be stored; the message itself stays in the log.
    """

    type: Literal["refused"] = "refused"
    reason: str
    durable: str
    subject: str
    sequence: Sequence
    body: str

    @staticmethod
    def id_of(durable: str, sequence: int) -> str:
        """The id of the dead letter of a message that a durable brought."""
        return f"{durable}-{sequence}"

    @classmethod
    def of(cls, job: str, durable: str, subject: str, sequence: int, body: bytes, reason: str) -> "Refused":
        """The dead letter of a message; its id is the same wherever that is made."""
        return cls(
            job=job,
            id=cls.id_of(durable, sequence),
            reason=reason[:MAX_REASON],
            durable=durable,
            subject=subject,
            sequence=sequence,
            body=b64encode(body[:MAX_BODY]).decode(),
        )


class Replayed(DeadLetterFact):
    """Somebody wants it to be done after all: the `number`th time that this dead letter is replayed.

    `input` goes over the input that there was. `request`: what whoever asked calls it, so that asking again asks for nothing.
    """

    type: Literal["replayed"] = "replayed"
    number: Annotated[int, Field(ge=1)]
    input: Input | None = None
    by: Actor | None = None
    reason: str | None = None
    request: str | None = None


class Resolved(DeadLetterFact):
    """Nothing is left to be done about it: a replay completed (`execution_id`), or somebody says so."""

    type: Literal["resolved"] = "resolved"
    execution_id: str | None = None
    by: Actor | None = None
    reason: str | None = None


# --- what the public sees (ojs-cron §9) ------------------------------------------------------------------------------


class CronTriggeredData(Message):
    """The data of `cron.triggered`."""

    cron_name: str
    cron_expression: str
    timezone: str
    job_id: str
    job_type: str
    run_count: int
    scheduled_time: datetime
    actual_time: datetime


class CronTriggered(Message):
    """A cron job fired and an execution was admitted (ojs-cron §9.1, CRON-29)."""

    event: Literal["cron.triggered"] = "cron.triggered"
    timestamp: datetime
    data: CronTriggeredData


class CronSkippedData(Message):
    """The data of `cron.skipped`."""

    cron_name: str
    cron_expression: str
    timezone: str
    reason: SkipReason
    active_job_id: str | None = None
    scheduled_time: datetime


class CronSkipped(Message):
    """A scheduled occurrence did not become an execution (ojs-cron §9.2, CRON-30)."""

    event: Literal["cron.skipped"] = "cron.skipped"
    timestamp: datetime
    data: CronSkippedData


UnforeseenReason: TypeAlias = Literal["missed", "throttled"]
"""Why instants pass without firing though nobody wished it: no ticker led, or the job was out of hand."""

UNFORESEEN: Final[frozenset[str]] = frozenset(get_args(UnforeseenReason))


class CronMissedData(Message):
    """The data of `cron.missed`: the span that passed, (start, until], as the ledger has it."""

    cron_name: str
    cron_expression: str
    timezone: str
    reason: UnforeseenReason
    count: int
    start: datetime
    until: datetime


class CronMissed(Message):
    """Scheduled occurrences passed without firing, and nobody wished it: one event a span, with how many they were."""

    event: Literal["cron.missed"] = "cron.missed"
    timestamp: datetime
    data: CronMissedData


Timer: TypeAlias = RetryTimer | LeaseTimer | ExpiryTimer
Announcement: TypeAlias = CronTriggered | CronSkipped | CronMissed
Fact: TypeAlias = LedgerFact | ExecutionFact | LockFact | DeadLetterFact


# --- what executors outside are told, and answer (hip-62, Integration with MQ) ----------------------------------------


class EnvelopeData(Message):
    """The task, as hip-62 writes it, and what an answer may repeat."""

    job_name: str
    execution_id: str
    function: str
    input: Input = {}
    args: tuple[JsonValue, ...] = ()
    attempt: int
    timeout: float
    step: str
    token: str
    scheduled_time: datetime
    trigger: TriggerKind
    fence: Sequence | None = None
    upstream: dict[str, JsonValue] = {}
    upstream_left_out: tuple[str, ...] = ()
    metadata: dict[str, JsonValue] = {}


class Envelope(Message):
    """The MQ envelope on `mq.scheduled.<job>`."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, validate_by_alias=True)

    schema_: Literal["hanzo.mq.v1"] = Field(default="hanzo.mq.v1", alias="schema")
    id: str
    type: Literal["scheduler.execute"] = "scheduler.execute"
    source: Literal["scheduler"] = "scheduler"
    timestamp: datetime
    data: EnvelopeData


class Completion(Message):
    """An answer on `mq.scheduler.complete.<job>.<execution_id>`.

    Everything may be left out: without a status it failed if it has an error, without a step the one in flight is meant,
    without an attempt the current one. A token, where given, must be the task's.
    """

    status: Literal["completed", "success", "succeeded", "ok", "failed", "failure", "error"] | None = None
    step: str | None = None
    attempt: int | None = None
    token: str | None = None
    result: JsonValue = None
    error: Failure | str | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it says that the attempt failed."""
        return self.status in {"failed", "failure", "error"} or (self.status is None and self.error is not None)
