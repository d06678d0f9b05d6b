"""From time and triggers to executions (I1 to I4): each is answered once, and nothing else happens."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

from tocsin.domain import ids, planning
from tocsin.domain.events import Due, Message, Passed, Recorded, Refused, Requested, Trigger
from tocsin.subjects import job_of

from .everything import Everything, Violation


def an_instant_has_one_execution(everything: Everything) -> Iterator[Violation]:
    """At most one execution for a job and a scheduled time."""
    found: dict[tuple[str, datetime], dict[str, Recorded[Requested]]] = defaultdict(dict)
    for recorded in everything.facts(Requested):
        asked = recorded.message
        if asked.trigger == "cron":
            found[asked.job, asked.scheduled_time].setdefault(asked.execution_id, recorded)
    for executions in found.values():
        if len(executions) > 1:
            yield Violation.of("I1", f"{len(executions)} executions of one instant", *executions.values())


def what_was_asked_for_is_answered(everything: Everything) -> Iterator[Violation]:
    """Each `due` and each trigger has an execution, each instant that passed in public a skip; there are no others."""
    asked = {execution_id: recorded for recorded in everything.ledger for execution_id in _wanted(recorded)}
    refused = {(r.message.durable, r.message.sequence) for r in everything.facts(Refused)}
    for execution_id, recorded in asked.items():
        if execution_id not in everything.executions and ("planner-triggers", recorded.sequence) not in refused:
            yield Violation.of("I2", f"nothing became of it: {execution_id} is missing", recorded)
    for execution_id, facts in everything.executions.items():
        if execution_id not in asked:
            yield Violation.of("I3", f"nobody asked for {execution_id}", facts[0])


def _wanted(recorded: Recorded[Message]) -> Iterator[str]:
    """The executions that a message asks for."""
    match recorded.message:
        case Due() as due:
            yield ids.occurrence_id(due.job, due.scheduled_time)
            if due.dst_skip:
                yield ids.passed_id(due.job, due.scheduled_time)
        case Passed() as passed:
            yield from (ids.passed_id(passed.job, at) for at in passed.scheduled_times)
        case Trigger() as trigger:
            asked = Recorded(trigger, recorded.subject, recorded.sequence, recorded.time, recorded.message_id)
            yield planning.execution_id_of(asked, job_of(recorded.subject))


def no_fact_is_there_twice(everything: Everything) -> Iterator[Violation]:
    """Each fact of an execution, and each dead letter, is one message."""
    stored: dict[str, list[Recorded[Message]]] = defaultdict(list)
    for recorded in everything.log:
        if recorded.subject.startswith(("execution.", "dead-letter.")):
            stored[recorded.subject].append(recorded)
    for same in stored.values():
        if len(same) > 1:
            yield Violation.of("I4", f"stored {len(same)} times", *same)
