"""Facts as the log would have stored them, for tests that say only what matters to them."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from tocsin import subjects
from tocsin.domain import execution, ids
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Admitted,
    DeadLettered,
    Dispatched,
    Message,
    OutputMessage,
    Plan,
    PlannedStep,
    Recorded,
    Report,
    Requested,
    Started,
    validated,
)

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
KEY = b"a key of this installation"
JOB, ID = "nightly", "0193a5b0-0000-7000-8000-000000000001"
LETTER = DeadLettered(
    job=JOB,
    id=ID,
    execution_id=ID,
    scheduled_time=NOON,
    trigger="cron",
    attempts=(),
    first_attempt=NOON,
    last_attempt=NOON,
)


def recorded(facts: Iterable[Message], start: datetime = NOON) -> list[Recorded[Message]]:
    """Facts under growing sequences, a second apart."""
    return [
        Recorded(fact, subjects.subject_of(fact), sequence, start + timedelta(seconds=sequence))
        for sequence, fact in enumerate(facts, start=1)
    ]


def plan(
    graph: dict[str, tuple[str, ...]] | None = None, *, retry: RetryPolicy | None = None, dead_letter: bool = True
) -> Plan:
    """A plan with these steps, each with what it depends on."""
    return Plan(
        definition=1,
        steps=tuple(
            PlannedStep(
                name=name,
                function=f"f/{name}",
                depends_on=depends_on,
                timeout=30,
                retry=retry or RetryPolicy(max_attempts=1),
            )
            for name, depends_on in (graph or {"main": ()}).items()
        ),
        dead_letter=dead_letter,
        cron_expression="0 3 * * *",
    )


def admitted(plan_: Plan | None = None, *, fence: int | None = None) -> Admitted:
    return Admitted(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", plan=plan_ or plan(), fence=fence)


def started(step: str = "main", attempt: int = 1, delivery: int = 1) -> Started:
    return Started(job=JOB, execution_id=ID, step=step, attempt=attempt, delivery=delivery, worker="w")


def with_known(message: Message, **values: Any) -> Message:  # noqa: ANN401 - the fields of any message
    """A copy with those other values whose fields the message has."""
    return message.changed(**{name: value for name, value in values.items() if hasattr(message, name)})


def admitted_of(first: Requested, **more: Any) -> Admitted:  # noqa: ANN401 - the fields of an admission
    """The admission of an execution that was planned."""
    fields: dict[str, Any] = {name: getattr(first, name) for name in Requested.__struct_fields__}
    return Admitted(**fields, **more)


def task(step: str = "main", attempt: int = 1, **more: object) -> Dispatched:
    return validated(
        Dispatched,
        {
            "job": JOB,
            "execution_id": ID,
            "step": step,
            "attempt": attempt,
            "max_attempts": 3,
            "function": f"f/{step}",
            "timeout": 30,
            "scheduled_time": NOON,
            "trigger": "cron",
            "token": "",
            **more,
        },
    )


def token_of(message: OutputMessage) -> str:
    """Return the token of the task of an attempt that says something."""
    return ids.report_token(KEY, message.execution_id, message.step, message.attempt)


def output_subject(message: OutputMessage) -> str:
    """Return the subject under which the worker of an attempt says something."""
    return subjects.output_of(message, token_of(message))


def first_tasks(admission: Admitted) -> list[Dispatched]:
    """Return the tasks that follow an admission."""
    return execution.dispatch(execution.fold(recorded([admission])), key=KEY)


def proven(report: Report, *, key: bytes = KEY) -> Report:
    """Return a report as the worker of the claim that it names sends it; without a claim, as a stage does."""
    proof = ids.claim_proof(key, report.execution_id, report.step, report.attempt, report.claim)
    return report.changed(proof=proof)


def report(outcome: str, step: str = "main", attempt: int = 1, delivery: int | None = 1, **more: object) -> Report:
    return validated(
        Report,
        {
            "job": JOB,
            "execution_id": ID,
            "outcome": outcome,
            "step": step,
            "attempt": attempt,
            "delivery": delivery,
            "token": "",
            **more,
        },
    )
