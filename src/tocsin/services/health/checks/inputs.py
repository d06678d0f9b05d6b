"""Check whether the stored inputs of jobs fit their schemas in this version."""

import asyncio
from collections.abc import Sequence
from typing import Final

from ....domain.definition import JobDefinition
from ....domain.definition.inputs import input_problems
from ....domain.text import counted
from ..findings import CheckContext, Finding, ok, warn

MAX_CHECKED: Final = 2_000
"""Jobs with a schema whose inputs are checked, in a thread: each takes up to 4 ms."""
MAX_LISTED: Final = 10
"""Jobs that a finding names."""


async def stored(context: CheckContext) -> list[Finding]:
    """Report jobs whose own input no longer fits their `input_schema` (`input-refused`).

    An older version accepted it, for example because it did not check formats.
    """
    definitions = [registration.definition for registration in await context.registrations()]
    checked = [definition for definition in definitions if definition.input_schema is not None]
    refused = await asyncio.to_thread(_refused, checked[:MAX_CHECKED])
    some = f" of the first {MAX_CHECKED:,} jobs with an `input_schema`" if len(checked) > MAX_CHECKED else ""
    if not refused:
        return [ok("input-refused", f"the stored input{some or ' of each job'} fits its schema")]
    examples = "; ".join(f"`{job}`: {problem}" for job, problem in refused[:MAX_LISTED])
    more = "; …" if len(refused) > MAX_LISTED else ""
    return [
        warn(
            "input-refused",
            f"the `input` of {counted(len(refused), 'job')}{some} does not fit its `input_schema`: {examples}{more}",
            means="schedules go on with this input; triggers, backfills and replays are refused, unless they give a valid value",
            do="correct the `input` of the job, and run `tocsin jobs apply` again",
            jobs=[job for job, _ in refused[:MAX_LISTED]],
        )
    ]


def _refused(definitions: Sequence[JobDefinition]) -> list[tuple[str, str]]:
    """Return the jobs whose input is refused, each with the first problem."""
    found = ((definition.name, _problem(definition)) for definition in definitions)
    return sorted((job, problem) for job, problem in found if problem is not None)


def _problem(definition: JobDefinition) -> str | None:
    is_partial = definition.schedule is None  # a trigger may add the missing keys
    problems = input_problems(definition.input, definition.args, definition.input_schema, is_partial=is_partial)
    first = next(problems, None)
    return None if first is None else f"`{first.field}`: {first.reason}"
