"""The definition of a job, and the rules that span its fields."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo, model_validator

from .. import schedule as calendar
from ..schedule import DayRules, DstPolicy, Shift
from ..text import same_text
from .builtin_work import FIELDS, BuiltinWork
from .calendars import Blackout, Calendars, day_problems
from .command import CommandField
from .concurrency import Concurrency
from .container_work import ContainerField
from .dependencies import DEFAULT_DEPENDENCY_TIMEOUT, Dependencies, dependency_problems
from .errors import DefinitionError, DefinitionProblem, excess, show
from .fields import (
    Args,
    CatchUp,
    Flag,
    Function,
    Name,
    Object,
    OnCompletion,
    OverlapPolicy,
    Priority,
    Seconds,
    Text,
    Timeout,
    is_stored,
    size_of,
)
from .http_request import HttpField
from .inputs import input_problems, reference_problems
from .notify import Notify
from .partition import PartitionField, key_problems, partition_problems
from .retry_policy import RecoveryPolicy, RetryPolicy, jitter_problems
from .sql_work import ProcedureCall, SqlStatement
from .step import Step, binding_problems, callback_problems, given_fields, graph_problems, work_problems
from .triggers import Triggers, trigger_problems

LEADER_ONLY: Final = "LEADER_ONLY"
QUORUM_REQUIRED: Final = "QUORUM_REQUIRED"
QUORUM_REPLICAS: Final = 3
"""The least number of servers that must keep the ledger and the log of a job with `QUORUM_REQUIRED`."""
MAX_PROPOSED_TO: Final = 100
"""The largest number of agents that a proposal names."""
DEFAULT_ACKNOWLEDGEMENT_TIMEOUT: Final = 10.0
"""Seconds for which a proposal waits for acknowledgements, unless the definition says otherwise."""

Acknowledgements: TypeAlias = Annotated[int, Field(ge=1, le=MAX_PROPOSED_TO, strict=True)]
"""The least number of agents that must acknowledge an execution."""


def _spelled(value: Any) -> Any:  # noqa: ANN401 - before validation
    """Let small letters, hyphens and spaces stand for the name of a class."""
    return value.strip().upper().replace("-", "_").replace(" ", "_") if isinstance(value, str) else value


JobClass: TypeAlias = Annotated[Literal["LOCAL_SAFE", "LEADER_ONLY", "QUORUM_REQUIRED"], BeforeValidator(_spelled)]


def _acknowledgement_problems(definition: "JobDefinition") -> Iterator[DefinitionProblem]:
    acknowledgements, timeout = definition.acknowledgements, definition.acknowledgement_timeout
    if acknowledgements is None and timeout != DEFAULT_ACKNOWLEDGEMENT_TIMEOUT:
        reason = "limits the wait for `acknowledgements`: say how many agents must acknowledge, or leave it out"
        yield DefinitionProblem(reason, field="acknowledgement_timeout", value=show(timeout), code="exclusive-fields")
    if acknowledgements is not None and definition.job_class != QUORUM_REQUIRED:
        reason = f"only executions of the class {QUORUM_REQUIRED} are acknowledged: write `job_class: {QUORUM_REQUIRED}`, or leave it out"
        yield DefinitionProblem(reason, field="acknowledgements", value=show(acknowledgements), code="exclusive-fields")


MAX_STEPS: Final = 1_000
"""The largest number of steps of a job."""
MAX_DEFINITION_BYTES: Final = 524_288
"""Bytes of a definition without its defaults, as compact UTF-8 JSON.

The plan of each execution has nearly all of it, and must fit one message.
"""
MAX_COPIES_BYTES: Final = 262_144
"""Bytes of a trigger's input, for the job and once more for each step with an input of its own."""
DEFAULT_MAX_WAITING: Final = 10_000
"""Executions of a job that may wait for its lock, unless its definition says otherwise."""
_INHERITED: Final = ("timeout", "input", "args", "queue", "priority", "retry")
"""The fields that a step has from its job unless it has its own."""
MAIN: Final = "main"
"""The name of the only step of a job without a DAG."""


class JobDefinition(BuiltinWork):
    """A named job: its schedule, its work, and its rules for special cases."""

    name: Name
    """The name of the job, unique in the installation."""
    schedule: Text | None = None
    """Cron, `@every`, or a phrase such as `every weekday at 7am`, each also with `from 2027-03-01T09:00 until 2027-04-01T00:00`; or
    `at 2027-03-01T09:00`. None: no schedule."""
    timezone: Text = "UTC"
    """The IANA name of the time zone in which the schedule is read."""
    dst: DstPolicy | None = None
    """The rule for local times that do not exist or exist twice; default: ojs-cron §5.2."""
    exclude: Calendars = ()
    """Calendars on whose days the schedule does not fire: names of the file's `calendars`, or `{name, days}`. Instants pass as `excluded`."""
    only: Calendars = ()
    """Calendars; the schedule does not fire on days that are in none of them. Empty: it fires on every day."""
    blackout: tuple[Blackout, ...] = ()
    """Spans of time in which the schedule does not fire: `{from, to, reason}`, without the moment `to` itself."""
    shift: Shift = "skip"
    """Whether a time moves from a day that `exclude` or `only` close. `skip`: it does not fire. `next_business_day`: its time of
    day comes on the next open day that is no Saturday or Sunday, once if that day has the time already."""
    function: Function | None = None
    """The function of a job with a single step. Either this, `dag`, or a built-in function such as `command`."""
    command: CommandField | None = None
    """A command, which a worker with `--builtin command` runs. A list is short for its `argv`."""
    http: HttpField | None = None
    """A request, which a worker with `--builtin http` sends. A text is short for its `url`."""
    sql: SqlStatement | None = None
    """A statement, which a worker with `--builtin sql` runs in a database."""
    procedure: ProcedureCall | None = None
    """A procedure of a database, which a worker with `--builtin procedure` calls."""
    container: ContainerField | None = None
    """A container, which a worker with `--builtin container` runs in Kubernetes. A text is short for its `image`."""
    dag: tuple[Step, ...] = ()
    """The steps of the job and their dependencies. Either this or `function`."""
    input: Object = {}
    """The keyword arguments of the handlers; a trigger may add keys or replace them."""
    args: Args = ()
    """Positional arguments, as the Open Job Spec hands them to a job."""
    timeout: Timeout = 300.0
    """The time limit of one attempt of a step."""
    execution_timeout: Timeout | None = None
    """Seconds from admission to end, with all steps, retries and delays, without `jitter`; None: unlimited."""
    retry: RetryPolicy = RetryPolicy()
    """The rule for retries, for every step without its own."""
    recovery: RecoveryPolicy = RecoveryPolicy()
    """The rule for tasks whose workers are lost."""
    overlap_policy: OverlapPolicy = "skip"
    """The rule for an occurrence that comes while another execution of the job is active.

    `skip`: it does not run. `allow`: both run. `cancel_previous`: the active execution is cancelled. `enqueue`: it waits, and is
    the default of a job without a schedule, so that no trigger is lost.
    """
    max_waiting: int = Field(default=DEFAULT_MAX_WAITING, ge=1, le=100_000, strict=True)
    """The executions that may wait for the job's lock, and for other jobs. One beyond it is skipped (`queue_full`).

    Replays and backfills do not count; up to 100,000 of them wait. Messages of `nats` triggers fill half of it, and 100,000 other
    events may wait beyond it. A cancelled execution keeps its place until its turn.
    """
    dead_letter: Flag = False
    """Whether an execution that fails for good leaves a dead letter."""
    tags: tuple[Text, ...] = ()
    """Labels of the job."""
    queue: Name = "default"
    """The queue from which workers take the tasks."""
    priority: Priority = 0
    """The priority of the job's tasks in their queue, from -100 to 100. Tasks of a higher priority are assigned first."""
    concurrency: Concurrency | None = None
    """The number of the job's tasks that workers may have at a time; None: unlimited."""
    depends_on: Dependencies = ()
    """The jobs whose last run in a window must end before an execution starts: names, or `{job, within, on}`."""
    dependency_timeout: Timeout = DEFAULT_DEPENDENCY_TIMEOUT
    """Seconds for which an execution waits for these jobs. Then it is skipped: `dependency_missing` or `dependency_failed`."""
    job_class: JobClass = "LOCAL_SAFE"
    """What the executions need. `LOCAL_SAFE`: any worker. `LEADER_ONLY`: the worker that is the executor leader. `QUORUM_REQUIRED`: 3 replicas.

    A job with `QUORUM_REQUIRED` is refused unless the ledger and the log have these, so that a majority of servers has stored each of its
    decisions. Executors of hip-62's queue and workers over HTTP get no tasks of `LEADER_ONLY`.
    """
    acknowledgements: Acknowledgements | None = None
    """The agents that must acknowledge an execution of a `QUORUM_REQUIRED` job before it starts, and at least a majority of those named.

    A proposal names all enabled agents that may run one of its steps, up to 100. Without enough answers the execution is proposed again, as
    often as `retry.max_attempts` says, and then skipped: `no_quorum`.
    """
    acknowledgement_timeout: Timeout = DEFAULT_ACKNOWLEDGEMENT_TIMEOUT
    """Seconds for which a proposal waits for acknowledgements."""
    triggers: Triggers = ()
    """The events that start executions, beside the schedule: messages of JetStream, and ends of other jobs."""
    partition: PartitionField | None = None
    """The shards on which an occurrence or a trigger runs, with one execution on each; None: the job is not divided.

    `all_shards`, `{single_shard: eu-1}`, `{shard_set: [eu-1, eu-2]}`, or `{shard_key: input.customer_id}`, which names a value of the
    input whose shard a fixed hash finds.
    """
    description: Text | None = None
    """A text for readers."""
    enabled: Flag = True
    """False: the schedule fires nothing."""
    meta: Object = {}
    """Data about the job that Tocsin stores and does not interpret."""
    catch_up: CatchUp = "once"
    """The instants that fire after a downtime: `once`: the newest missed instant, `skip`: none, `all`: all within the limits."""
    catch_up_limit: int = Field(default=100, ge=1, le=1_000, strict=True)
    """The number of newest missed instants that `catch_up: all` fires at most."""
    catch_up_max_age: Seconds = 86_400.0
    """The age in seconds up to which `catch_up: all` fires a missed instant."""
    starting_deadline: Timeout | None = None
    """Seconds after which an instant that has not fired is missed; None: no limit."""
    on_completion: OnCompletion = "preserve"
    """The end of a job whose schedule ends, after its last instant: `preserve`: it stays, disabled. `drop`: it is deleted if this
    instant fired; a job file that still has it changes nothing."""
    jitter: Seconds = 0.0
    """The longest delay of a start by the schedule, up to 24h and less than its shortest interval; 0: none.

    Each execution waits for a random time up to it, after the decision on its lock, so that jobs with the same schedule do not start
    together. The time is drawn from the id of the execution. Other triggers are not delayed.
    """
    input_schema: Object | None = None
    """A JSON Schema for `input`, checked here and at every trigger, whose keys are merged before.

    Without a schedule, what is missing in `input` as a whole (`required` and so on) is checked at the trigger only. Of formats, `date`,
    `date-time`, `time`, `duration` and `uuid` are checked. A check takes bounded work: a regular expression has no look-around, and `unevaluatedProperties` and `unevaluatedItems` are refused.
    """
    owner: Text | None = None
    """The owner of the job, beside its creator: a person, or a program that syncs job files.

    A user of the identity provider, `user:ada` or `ada`, or a token of the installation, `token:deploy`.
    """
    retention: Timeout | None = None
    """Seconds for which the history keeps finished executions; None: the setting of the installation."""
    notify: Notify | None = None
    """What to notify of, and by which channels; None: the rule that the settings have for jobs like this, if any."""
    viewers: tuple[Text, ...] = ()
    """The identities that may see the job, written like `owner`, beside creator, owner and administrators; empty: everyone."""

    def __eq__(self, other: object) -> bool:
        """Compare as JSON does: for Python, the inputs 1 and true are equal."""
        if self is other or not isinstance(other, JobDefinition):
            return self is other
        return super().__eq__(other) and same_text(self.model_dump(mode="json")) == same_text(
            other.model_dump(mode="json")
        )

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def day_rules(self) -> DayRules | None:
        """The rules about days; None: every day is open."""
        if not self.exclude and not self.only and not self.blackout:
            return None
        exclude, only = (tuple(named.named for named in each) for each in (self.exclude, self.only))
        return DayRules(exclude, only, tuple(span.span for span in self.blackout), self.shift)

    def own_steps(self) -> tuple[Step, ...]:
        if self.function is None:
            return self.dag
        work = {field: getattr(self, field) for field in FIELDS}
        return (Step.model_construct(name=MAIN, function=self.function, **work),)

    def step_queues(self) -> tuple[str, ...]:
        """Return the queues of the steps, each once."""
        if self.function is not None:
            return (self.queue,)
        return tuple(dict.fromkeys(step.queue or self.queue for step in self.own_steps()))

    @property
    def channels(self) -> tuple[str, ...]:
        return () if self.notify is None else self.notify.channels

    def steps(self) -> tuple[Step, ...]:
        inherited = {field: getattr(self, field) for field in _INHERITED}
        return tuple(
            step.model_copy(update={field: value for field, value in inherited.items() if getattr(step, field) is None})
            for step in self.own_steps()
        )

    @model_validator(mode="before")
    @classmethod
    def _lose_no_trigger(cls, data: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - before validation
        """Let triggers of a job without a schedule wait for each other by default."""
        is_given = isinstance(data, dict) and ("overlap_policy" in data or data.get("schedule") is not None)
        if is_stored(info) or is_given or not isinstance(data, dict):
            return data
        return {**data, "overlap_policy": "enqueue"}

    @model_validator(mode="after")
    def _is_registrable(self, info: ValidationInfo) -> Self:
        if not is_stored(info) and (problems := tuple(_problems(self))):
            raise DefinitionError(*problems)
        return self


def with_timezone(definition: JobDefinition, timezone: str) -> JobDefinition:
    """Return a definition whose schedule is read in a time zone, unless it names another.

    Raises:
        DefinitionError: the schedule has no sense in this zone.
    """
    if definition.schedule is None or "timezone" in definition.model_fields_set or timezone == definition.timezone:
        return definition
    changed = definition.model_copy(update={"timezone": timezone})
    if problems := tuple(_schedule_problems(changed)):
        raise DefinitionError(*(replace(problem, job=f"job `{definition.name}`") for problem in problems))
    return changed


def check_input(
    definition: JobDefinition,
    input: Mapping[str, JsonValue],  # noqa: A002 - the name of the field
    args: Sequence[JsonValue] | None = None,
    *,
    written: JsonValue = None,
) -> None:
    """Check the input and args of a trigger.

    Only a definition may refer to a secret: who may trigger a job may not choose which secrets its handler gets.

    The keys of `input` override the keys of the job's input. `args`: None: the job's. `written`: the part of both by the requester; None: everything.

    Raises:
        DefinitionError: it is not plain JSON, is too large, refers to secrets, or does not fit `input_schema`.
    """
    merged = {**definition.input, **input}
    problems = tuple(input_problems(merged, definition.args if args is None else args, definition.input_schema))
    problems = problems or tuple(_copies_problems(definition, input))
    problems = problems or tuple(key_problems(definition.partition, merged))
    if written is None:
        new = {key: value for key, value in input.items() if definition.input.get(key) != value}
        written = [new, [] if args is None or tuple(args) == definition.args else [*args]]
    problems = problems or tuple(reference_problems(written))
    if problems:
        raise DefinitionError(*(replace(problem, job=f"job `{definition.name}`") for problem in problems))


def _copies_problems(definition: JobDefinition, input: Mapping[str, JsonValue]) -> Iterator[DefinitionProblem]:  # noqa: A002
    """Yield a problem if the plan would hold too many copies of an input.

    The steps that have an input of their own each get the keys of the trigger's too.
    """
    copies = 1 + sum(step.input is not None for step in definition.dag)
    if copies == 1:
        return
    size = size_of(input)
    if copies * size > MAX_COPIES_BYTES:
        reason = (
            f"{size:,} bytes of JSON for the job and for each of {copies - 1:,} steps with an input of their own, "
            f"together more than {MAX_COPIES_BYTES:,}: keep large data in a store and refer to it"
        )
        yield DefinitionProblem(reason, field="input", code="too-large")


def _problems(definition: JobDefinition) -> Iterator[DefinitionProblem]:
    advice = "divide the job, or let one step do more of the work"
    if too_many := excess(len(definition.dag), "steps", MAX_STEPS, "dag", advice):
        yield from too_many
        return
    yield from _schedule_problems(definition)
    yield from _work_problems(definition)
    yield from partition_problems(
        definition.partition,
        definition.input,
        is_scheduled=definition.schedule is not None,
        leads=definition.job_class == LEADER_ONLY,
    )
    yield from trigger_problems(definition.name, definition.triggers)
    yield from _acknowledgement_problems(definition)
    yield from graph_problems(definition.dag)
    yield from callback_problems(definition.dag)
    wrong = [*_inputs_problems(definition)]
    yield from wrong or _size_problems(definition)  # one input that is too large makes the definition too large


def _work_problems(definition: JobDefinition) -> Iterator[DefinitionProblem]:
    own = () if definition.function is None else definition.own_steps()
    fields = (*(field for step in own for field in given_fields(step)), *(("dag",) if definition.dag else ()))
    if not fields:
        builtins = ", ".join(f"`{field}`" for field in FIELDS)
        reason = f"give either `function` or `dag`, or a built-in function, one of {builtins}"
        yield DefinitionProblem(reason, code="required")
    elif len(fields) > 1:
        yield _both(fields)
    for step in own:
        yield from work_problems(step)
    for step in definition.dag:
        if len(fields := given_fields(step)) > 1:
            yield replace(_both(fields), step=step.name)
        yield from (replace(problem, step=step.name) for problem in (*work_problems(step), *binding_problems(step)))


def _both(fields: Sequence[str]) -> DefinitionProblem:
    names = " and ".join(f"`{field}`" for field in fields)
    return DefinitionProblem(f"{names} exclude each other: give one", code="exclusive-fields")


def _schedule_problems(definition: JobDefinition) -> Iterator[DefinitionProblem]:
    timezone, is_once, ends, schedule = definition.timezone, False, False, None
    try:
        calendar.validate_timezone(timezone)
    except calendar.ScheduleError as error:
        yield _unscheduled("timezone", timezone, error)
        timezone = "UTC"  # every local time exists there, so that only mistakes of the schedule itself are found
    if definition.schedule is not None:
        try:
            schedule = calendar.parse(definition.schedule, timezone, dst=definition.dst)
            is_once = schedule.only_instant is not None
            ends = is_once or schedule.ends_at is not None
        except calendar.ScheduleError as error:
            yield _unscheduled("schedule", definition.schedule, error)
            return
    yield from day_problems(definition.exclude, definition.only, definition.blackout, definition.shift, schedule)
    yield from jitter_problems(definition.jitter, schedule)
    repeats = definition.schedule is not None and not is_once
    yield from dependency_problems(definition.name, definition.depends_on, repeats=repeats)
    if definition.on_completion == "drop" and not ends:
        reason = (
            "only a job whose schedule ends is complete: write `at 2027-03-01T09:00` as its schedule, or "
            "`until 2027-03-01T09:00` at its end"
        )
        yield DefinitionProblem(reason, field="on_completion", value=show("drop"), code="exclusive-fields")


def _unscheduled(field: str, written: str, error: calendar.ScheduleError) -> DefinitionProblem:
    suggestion = f" (try: {error.suggestion})" if error.suggestion else ""
    return DefinitionProblem(
        error.problem.removeprefix(f"{field}: ") + suggestion, field=field, value=show(written), code=error.code
    )


def _inputs_problems(definition: JobDefinition) -> Iterator[DefinitionProblem]:
    is_triggered = definition.schedule is None
    yield from input_problems(definition.input, definition.args, definition.input_schema, is_partial=is_triggered)
    for step in definition.dag:
        if step.input is not None or step.args is not None:
            input_ = definition.input if step.input is None else step.input
            for problem in input_problems(input_, definition.args if step.args is None else step.args):
                yield replace(problem, step=step.name)


def _size_problems(definition: JobDefinition) -> Iterator[DefinitionProblem]:
    size = len(definition.model_dump_json(exclude_defaults=True).encode())
    if size <= MAX_DEFINITION_BYTES:
        return
    steps_inputs = [value for step in definition.dag for value in (step.input, step.args)]
    inputs = sum(size_of(value) for value in (definition.input, definition.args, *steps_inputs) if value)
    parts = {name: size_of(value) for name, value in definition.model_dump(mode="json", exclude_defaults=True).items()}
    field = "input" if inputs > size / 2 else max(parts, key=lambda name: parts[name])
    largest = (
        f"{inputs:,} bytes of JSON in all inputs together" if field == "input" else f"{parts[field]:,} bytes of JSON"
    )
    reason = (
        f"{largest}, and {size:,} in the whole definition, more than {MAX_DEFINITION_BYTES:,}: "
        "keep large data in a store, or divide the job"
    )
    yield DefinitionProblem(reason, field=field, code="too-large")


def fans_out(definition: JobDefinition | None) -> bool:
    """Return whether an occurrence of a job becomes several executions."""
    return definition is not None and definition.partition is not None and not definition.partition.has_one


_CODE: Final = ("command", "sql", "container")
"""The fields with code of a job's author, which runs with the rights of a worker.

The settings of a worker list the procedures and the URLs that jobs may name, so `procedure` and `http` run no such code. They list images too,
but a job chooses the program in an image, and its arguments.
"""


def runs_code(definition: JobDefinition) -> bool:
    """Return whether a step of a job runs a program or a statement."""
    return any(getattr(work, field) is not None for work in (definition, *definition.dag) for field in _CODE)
