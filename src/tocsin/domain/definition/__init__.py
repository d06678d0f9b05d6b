"""The definition of a job, normalized: what every specification's spelling is read into, and what the ledger stores.

A value of these classes is valid by construction: names, durations, the schedule, the graph of the steps, the size and the
schema of the input have been checked (ojs-cron §2.2; hip-62, Job Registry and Job Input Sanitization). Durations are
seconds. What was valid when it was recorded must stay readable when rules get stricter or a time zone disappears, so
reading from the log passes `context=STORED`, which leaves out every check that is about what may be registered.

    problem                          what can be wrong, and how that is told
    plain_json, fields, inputs       what is checked by itself
    model                            the whole, and the rules that span its fields
"""

from .errors import DefinitionError, DefinitionProblem, shorten, show
from .fields import (
    MAX_DEPTH,
    MAX_INPUT_BYTES,
    STORED,
    Args,
    CatchUp,
    Flag,
    Function,
    Name,
    Object,
    OverlapPolicy,
    Seconds,
    StepName,
    Text,
    Timeout,
)
from .model import MAIN, MAX_PLAN_BYTES, JobDefinition, RetryPolicy, Step, check_input

__all__ = [
    "MAIN",
    "MAX_DEPTH",
    "MAX_INPUT_BYTES",
    "MAX_PLAN_BYTES",
    "STORED",
    "Args",
    "CatchUp",
    "DefinitionError",
    "DefinitionProblem",
    "Flag",
    "Function",
    "JobDefinition",
    "Name",
    "Object",
    "OverlapPolicy",
    "RetryPolicy",
    "Seconds",
    "Step",
    "StepName",
    "Text",
    "Timeout",
    "check_input",
    "shorten",
    "show",
]
