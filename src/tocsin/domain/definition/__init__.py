"""The definition of a job, as the ledger stores it.

Every format is read into these classes. A value is valid by construction: names, durations, the schedule, the graph of the steps, and the size
and schema of the input have been checked (ojs-cron §2.2; hip-62, Job Registry and Job Input Sanitization). Durations
are seconds. A stored definition must stay readable when rules get stricter or a time zone disappears. Reading from the
log therefore passes `context=STORED`, which leaves out every check that is about registration.

    errors                     problems, their codes and text
    fields, inputs             checks of single fields and of inputs
    calendars, concurrency     days, limits
    dependencies, job_class    dependencies on other jobs, classes of jobs
    builtin_work and others    built-in work
    step, model                the definition and its rules
"""

from .calendars import Blackout, Calendar, day_rules
from .concurrency import Concurrency, value_of
from .dependencies import LONGEST_WINDOW_S, MAX_DEPENDENCIES, JobDependency, upstream_jobs
from .errors import MAX_PROBLEMS, DefinitionError, DefinitionProblem, shorten, show
from .errors import problems as problems_of
from .fields import (
    MAX_DEPTH,
    MAX_INPUT_BYTES,
    STORED,
    CatchUp,
    Name,
    OnCompletion,
    OverlapPolicy,
    Text,
    Timeout,
    is_name,
    json_problem,
    size_of,
)
from .inputs import check_replay_input
from .job_class import LEADER_ONLY, MAX_PROPOSED_TO, QUORUM_REPLICAS, QUORUM_REQUIRED, JobClass
from .model import (
    DEFAULT_MAX_WAITING,
    MAX_COPIES_BYTES,
    MAX_STEPS,
    JobDefinition,
    check_input,
    fans_out,
    runs_code,
    with_timezone,
)
from .notify import Notify, channel_name
from .retry_policy import DEFAULT_MAX_DEATHS, RecoveryPolicy, RetryPolicy
from .step import Step
from .triggers import Batch, Debounce, EventTrigger

__all__ = [
    "DEFAULT_MAX_DEATHS",
    "DEFAULT_MAX_WAITING",
    "LEADER_ONLY",
    "LONGEST_WINDOW_S",
    "MAX_COPIES_BYTES",
    "MAX_DEPENDENCIES",
    "MAX_DEPTH",
    "MAX_INPUT_BYTES",
    "MAX_PROBLEMS",
    "MAX_PROPOSED_TO",
    "MAX_STEPS",
    "QUORUM_REPLICAS",
    "QUORUM_REQUIRED",
    "STORED",
    "Batch",
    "Blackout",
    "Calendar",
    "CatchUp",
    "Concurrency",
    "Debounce",
    "DefinitionError",
    "DefinitionProblem",
    "EventTrigger",
    "JobClass",
    "JobDefinition",
    "JobDependency",
    "Name",
    "Notify",
    "OnCompletion",
    "OverlapPolicy",
    "RecoveryPolicy",
    "RetryPolicy",
    "Step",
    "Text",
    "Timeout",
    "channel_name",
    "check_input",
    "check_replay_input",
    "day_rules",
    "fans_out",
    "is_name",
    "json_problem",
    "problems_of",
    "runs_code",
    "shorten",
    "show",
    "size_of",
    "upstream_jobs",
    "value_of",
    "with_timezone",
]
