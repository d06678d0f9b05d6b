"""Every log that was ever recorded is still read, and still folds to what it meant."""

import json
from collections import defaultdict
from datetime import datetime
from pathlib import Path

import pytest

from tocsin import subjects
from tocsin.domain import dead_letter, execution, history, ledger, lock
from tocsin.domain.events import (
    DeadLetterFact,
    Dispatched,
    ExecutionFact,
    LedgerFact,
    LockFact,
    Message,
    Recorded,
    Requested,
    unfold,
)
from tocsin.domain.execution import Status

FOLDER = Path(__file__).parent
LOGS = sorted(path for path in FOLDER.glob("*.jsonl") if path.stem != "scripts")
per_log = pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)


def read(log: Path) -> list[Recorded[Message]]:
    facts = []
    for line in log.read_text(encoding="utf-8").splitlines():
        stored = json.loads(line)
        message = subjects.decode(stored["subject"], json.dumps(stored["body"]).encode())
        facts.append(Recorded(message, stored["subject"], stored["sequence"], datetime.fromisoformat(stored["time"])))
    return facts


def executions(log: Path) -> dict[str, list[Recorded[Message]]]:
    found: dict[str, list[Recorded[Message]]] = defaultdict(list)
    for recorded in read(log):
        if isinstance(recorded.message, ExecutionFact):
            found[recorded.message.execution_id].append(recorded)
    return {key: sorted(facts, key=lambda recorded: recorded.sequence) for key, facts in found.items()}


def test_there_are_logs() -> None:
    assert LOGS


def test_logs_hold_every_form_of_an_event() -> None:
    """Forms of one event that differ in the fields that they leave out."""
    messages = [recorded.message for log in LOGS for recorded in read(log)]
    tasks = [message for message in messages if isinstance(message, Dispatched)]
    assert {task.admits is not None for task in tasks} == {True, False}
    locks = [message for message in messages if isinstance(message, LockFact)]
    assert {type(message).__name__ for message in locks} == {"Acquired", "Queued"}


@per_log
def test_stored_subjects_equal_current_subjects(log: Path) -> None:
    for recorded in read(log):
        if recorded.subject.startswith(("trigger.", "cancel.")):
            continue
        assert subjects.subject_of(recorded.message) == recorded.subject


@per_log
def test_nothing_that_was_stored_is_lost_in_reading(log: Path) -> None:
    for line in log.read_text(encoding="utf-8").splitlines():
        stored = json.loads(line)
        message = subjects.decode(stored["subject"], json.dumps(stored["body"]).encode())
        assert _is_in(stored["body"], message.document())


def _is_in(stored: object, today: object) -> bool:
    """Every stored field is still read, beside fields added since."""
    match stored, today:
        case dict(), dict():
            return all(key in today and _is_in(value, today[key]) for key, value in stored.items())
        case list(), list():
            return len(stored) == len(today) and all(map(_is_in, stored, today))
        case _:
            return stored == today


@per_log
def test_executions_fold_to_what_they_came_to(log: Path) -> None:
    expected = json.loads(log.with_suffix(".expected.json").read_text(encoding="utf-8"))
    statuses: dict[str, list[str]] = defaultdict(list)
    for facts in executions(log).values():
        state = execution.fold(facts)
        job = facts[0].message
        assert isinstance(job, ExecutionFact)
        statuses[job.job].append(state.status)
        if state.status is not Status.SKIPPED:
            assert isinstance(state.requested, Requested)
            assert set(state.steps) == {step.name for step in state.requested.plan.steps}
    assert {job: sorted(found) for job, found in statuses.items()} == expected["executions"]


@per_log
def test_read_model_equals_the_fold(log: Path) -> None:
    for execution_id, facts in executions(log).items():
        row = history.fold({}, facts)[execution_id]
        status = execution.fold(facts).status
        assert row.status == (status if status in execution.TERMINAL_STATUSES else row.status)


@per_log
def test_ledgers_fold_to_what_holds(log: Path) -> None:
    expected = json.loads(log.with_suffix(".expected.json").read_text(encoding="utf-8"))
    states: dict[str, ledger.Ledger] = defaultdict(lambda: ledger.initial)
    for recorded in sorted(read(log), key=lambda recorded: recorded.sequence):
        if isinstance(recorded.message, LedgerFact):
            states[recorded.message.job] = ledger.evolve(states[recorded.message.job], recorded)
    assert {job: state.definition is not None for job, state in states.items()} == expected["defined"]
    assert all(ledger.missing_fact(state) is None for state in states.values())


@per_log
def test_locks_fold_to_nothing_that_waits(log: Path) -> None:
    scopes: dict[str, list[Recorded[Message]]] = defaultdict(list)
    for recorded in sorted(read(log), key=lambda recorded: recorded.sequence):
        if isinstance(recorded.message, LockFact):
            scopes[recorded.message.job].append(recorded)
    assert all(len(lock.fold(facts).waiting) == 0 for facts in scopes.values())


@per_log
def test_dead_letters_fold_to_their_outcome(log: Path) -> None:
    expected = json.loads(log.with_suffix(".expected.json").read_text(encoding="utf-8"))["dead_letters"]
    states: dict[str, dead_letter.DeadLetter] = defaultdict(lambda: dead_letter.initial)
    found = sorted(read(log), key=lambda recorded: recorded.sequence)
    for recorded in found:
        if isinstance(recorded.message, DeadLetterFact):
            states[recorded.message.id] = dead_letter.evolve(states[recorded.message.id], recorded)
    begun = {
        r.message.execution_id
        for r in unfold(found)
        if isinstance(r.message, Requested) and r.message.trigger == "replay"
    }
    assert {replay.execution_id for state in states.values() for replay in state.replays} == begun
    summary = sorted((state.fact.job, len(state.replays), state.resolved is not None) for state in states.values())
    assert summary == [tuple(one) for one in expected]
