"""W7: the rate of reading a log: decoded and folded, and decoded and audited.

The log is that of a job that fires every second for days, as the domain decides it: seven events an execution. No server takes
part, so there are no messages and reads to count; the bare rate is that of a server without other work.
"""

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from benchmarks.bare import bare_rate
from benchmarks.conditions import Conditions
from benchmarks.metrics import Metrics
from benchmarks.part import FUNCTION
from benchmarks.servers import initialized, servers
from tocsin import subjects
from tocsin.domain import execution, execution_plan
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Admitted,
    CronTriggered,
    CronTriggeredData,
    Defined,
    Dispatched,
    Due,
    Message,
    Recorded,
    Report,
    Started,
)
from tocsin.services.audit import Auditor

FACTS: Final = 1_000_000
AT_ONCE: Final = 50_000
"""Events that are made, outside the measured time, before each read."""
KEY: Final = b"benchmark"
BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
JOB: Final = JobDefinition(name="replayed", schedule="* * * * * *", function=FUNCTION, overlap_policy="allow")

Stored: TypeAlias = tuple[str, bytes, int, datetime]


async def replay(conditions: Conditions, *, facts: int = FACTS) -> Metrics:
    """Return events a second.

    Raises:
        AssertionError: the audit reports a violation.
    """
    async with servers(sync_always=conditions.sync_always) as nats, initialized(nats.settings) as installation:
        bare = await bare_rate(installation.connection.client)
    folding = auditing = 0.0
    auditor, states = Auditor(), dict[str, execution.Execution]()
    log = _log(facts)
    while chunk := list(itertools.islice(log, AT_ONCE)):
        began = time.perf_counter()
        for stored in chunk:
            recorded = _recorded(stored)
            if stored[0].startswith("execution."):
                entity = subjects.entity_of(stored[0])
                states[entity] = execution.evolve(states.get(entity, execution.initial), recorded)
                if states[entity].is_over:
                    del states[entity]
        folding += time.perf_counter() - began
        began = time.perf_counter()
        for stored in chunk:
            auditor.take(_recorded(stored))
        auditing += time.perf_counter() - began
    began = time.perf_counter()
    report = auditor.report()
    auditing += time.perf_counter() - began
    if report.violations or states:
        raise AssertionError(f"the log that was made up is not sound: {report.violations[:3]}, {len(states)} open")
    return {
        "folded_per_second": report.facts / folding,
        "audited_per_second": report.facts / auditing,
        "bare_rate": bare,
    }


def _recorded(stored: Stored) -> Recorded[Message]:
    subject, body, sequence, at = stored
    return Recorded(subjects.decode(subject, body), subject, sequence, at)


def _log(facts: int) -> Iterator[Stored]:
    """Yield the events of both streams in about the order of the log."""
    made = 1
    yield _stored(Defined(job=JOB.name, definition=JOB), 1, BEGIN)
    log_sequence = 0
    count = 0
    while made < facts:
        at = BEGIN + timedelta(seconds=count + 1)
        count += 1
        due = Due(job=JOB.name, scheduled_time=at, definition=1)
        yield _stored(due, count + 1, at)
        made += 1
        for message in _execution(due, count):
            log_sequence += 1
            made += 1
            yield _stored(message, log_sequence, at + timedelta(milliseconds=log_sequence % 7))


def _execution(due: Due, count: int) -> Iterator[Message]:
    admitted = execution_plan.from_due(due, JOB)
    if not isinstance(admitted, Admitted):
        raise TypeError("a job that lets runs overlap is admitted at once")
    state = _after(execution.initial, admitted)
    yield admitted
    data = CronTriggeredData(
        cron_name=JOB.name,
        cron_expression=JOB.schedule or "",
        timezone=JOB.timezone,
        job_id=admitted.execution_id,
        job_type=FUNCTION,
        run_count=count,
        scheduled_time=due.scheduled_time,
        actual_time=due.scheduled_time,
    )
    yield CronTriggered(timestamp=due.scheduled_time, data=data)
    [task] = execution.dispatch(state, key=KEY)
    state = _after(state, task)
    yield task
    started = Started(
        job=JOB.name, execution_id=task.execution_id, step=task.step, attempt=1, delivery=1, worker="worker"
    )
    state = _after(state, started)
    yield started
    report = _report(task)
    yield report
    yield from execution.succeed(state, report, key=KEY)


def _report(task: Dispatched) -> Report:
    return Report(
        job=task.job,
        execution_id=task.execution_id,
        outcome="completed",
        step=task.step,
        attempt=task.attempt,
        delivery=1,
        token=task.token,
        worker="worker",
    )


def _after(state: execution.Execution, message: Message) -> execution.Execution:
    return execution.evolve(state, Recorded(message, subjects.subject_of(message), 1, BEGIN))


def _stored(message: Message, sequence: int, at: datetime) -> Stored:
    return subjects.subject_of(message), message.encode(), sequence, at
