"""Names on the wire: every message is stored under a subject that leads back to it."""

import pytest

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, report, started
from tocsin import subjects
from tocsin.domain import execution, json_codec
from tocsin.domain.events import (
    Acquired,
    Admission,
    AgentDrainStarted,
    AgentEnded,
    AgentFellSilent,
    AgentForgotten,
    AgentGranted,
    AgentRegistered,
    AgentSwitched,
    CronAnswer,
    CronAnswerData,
    CronMissed,
    CronMissedData,
    CronSkipped,
    CronSkippedData,
    DeadLettered,
    Dispatched,
    Due,
    Lost,
    Message,
    Paused,
    QueueGrant,
    QueuePaused,
    QueuePurged,
    QueueResumed,
    Recovered,
    Report,
    Shard,
    ShardsDefined,
    Trigger,
    Voided,
)

ADMISSION = Admission(plan=plan())
ADMITTED_TASK = execution.admit_and_dispatch(admitted(fence=7), key=KEY)
MESSAGES: list[Message] = [
    admitted(),
    started(),
    report("completed"),
    report("failed", delivery=None),
    Due(job="a.b-c", scheduled_time=NOON, definition=1),
    Paused(job="a.b-c", definition=1),
    Acquired(job=JOB, execution_id=ID, scheduled_time=NOON, ttl=1),
    Acquired(job=JOB, shard="eu.1", execution_id=ID, scheduled_time=NOON, ttl=1),
    Recovered(
        job=JOB, execution_id=ID, recovery=2, lost=(Lost(what="planned", since=NOON),), recovered_at=NOON
    ),
    Dispatched(
        job=JOB, execution_id=ID, step="s", attempt=1, max_attempts=1, function="f", timeout=1, scheduled_time=NOON,
        trigger="cron", token="t", queue="gpu.large",
    ),
    ADMITTED_TASK,
    DeadLettered(
        job=JOB, id=ID, execution_id=ID, scheduled_time=NOON, trigger="cron", attempts=(), first_attempt=NOON,
        last_attempt=NOON,
    ),
    CronSkipped(
        timestamp=NOON,
        data=CronSkippedData(
            cron_name="a.b", cron_expression="* * * * *", timezone="UTC", reason="disabled", scheduled_time=NOON
        ),
    ),
    CronAnswer(
        timestamp=NOON,
        data=CronAnswerData(cron_name="a.b", trigger_id="order%2E17", answer="queued", code="lock_held"),
    ),
    CronMissed(
        timestamp=NOON,
        data=CronMissedData(
            cron_name="a.b", cron_expression="* * * * *", timezone="UTC", reason="missed", count=2, start=NOON, until=NOON
        ),
    ),
    AgentRegistered(name="mail-1", agent_id=ID, queues=("default",), functions=("f",), labels={"zone": "a"}),
    AgentDrainStarted(name="mail-1", agent_id=ID),
    AgentFellSilent(name="mail-1", agent_id=ID, silent_for=30),
    AgentEnded(name="mail-1", agent_id=ID),
    AgentForgotten(name="mail-1", agent_id=ID),
    AgentSwitched(name="mail-1", enabled=False),
    AgentGranted(name="mail-1", grants=(QueueGrant(queue="mail", functions=("mail/*",)),)),
    QueuePaused(queue="mail.eu", reason="deploy"),
    QueueResumed(queue="mail.eu"),
    QueuePurged(queue="mail.eu", upto=7, waiting=2),
    ShardsDefined(previous=3, shards=(Shard(shard_id="eu-1", name="Europe", labels={"zone": "a"}),)),
    Voided(stream="LOG", sequence=7, subject="ledger.a_b.due", stored_at=NOON, found="no guard", digest="00"),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_by_its_subject(message: Message) -> None:
    subject = subjects.subject_of(message)
    assert subjects.decode(subject, message.encode()) == message
    assert all(token for token in subject.split("."))
    assert not set(subject) & set("*> ")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_subject_is_inside_the_scope_of_its_message(message: Message) -> None:
    if not subjects.subject_of(message).startswith("report."):
        assert _matches(subjects.scope_of(message), subjects.subject_of(message))


def test_lock_of_a_job_excludes_its_shards() -> None:
    assert not _matches(subjects.lock(JOB), f"lock.{JOB}.eu.acquired")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("execution.admitted", admitted()),
        ("execution.started", started()),
        ("execution.recovered", Recovered(job=JOB, execution_id=ID, recovery=1, lost=(), recovered_at=NOON)),
        ("report.completed", report("completed")),
        ("ledger.due", Due(job="a.b-c", scheduled_time=NOON, definition=1)),
    ],
)
def test_a_filter_finds_what_it_is_for(pattern: str, message: Message) -> None:
    assert _matches(subjects.filter_for(pattern), subjects.subject_of(message))


@pytest.mark.parametrize("admits", [None, ADMISSION], ids=["only a task", "also an admission"])
def test_the_tasks_of_a_queue_are_its_own(admits: Admission | None) -> None:
    task = next(m for m in MESSAGES if isinstance(m, Dispatched)).changed(admits=admits)
    subject = subjects.subject_of(task)
    assert [_matches(pattern, subject) for pattern in subjects.tasks("gpu.large")] == [
        admits is None,
        admits is not None,
    ]
    assert not any(_matches(pattern, subject) for queue in ("gpu", "default") for pattern in subjects.tasks(queue))
    of_default = subjects.subject_of(task.changed(queue="default"))
    assert any(_matches(pattern, of_default) for pattern in subjects.tasks("default"))
    assert any(_matches(pattern, subject) for pattern in subjects.filters_of(Dispatched))
    assert any(_matches(pattern, subject) for pattern in subjects.OPENINGS) is (admits is not None)


@pytest.mark.parametrize(
    ("subject", "job"),
    [
        ("ledger.a_b-c.due", "a.b-c"),
        ("cron.triggered.a_b", "a.b"),
        ("trigger.a_b", "a.b"),
        ("trigger.a.b", "a.b"),
        ("cancel.a_b.id", "a.b"),
        ("cancel.a.b.id", "a.b"),
        ("mq.scheduler.complete.a_b.id", "a.b"),
        ("mq.scheduled.a_b", "a.b"),
        ("mq.scheduled.a.b", "a.b"),
        ("mq.scheduler.complete.a.b.id", "a.b"),
        ("execution.a_b.id.admitted", "a.b"),
    ],
)
def test_every_subject_contains_its_job(subject: str, job: str) -> None:
    assert subjects.job_of(subject) == job


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("execution.j.id.exploded", b"{}"),
        ("nothing.we.know", b"{}"),
        ("execution.j.id.admitted", b"not json"),
        ("execution.j.id.admitted", b"{}"),
        ("execution.j.id.admitted", ADMITTED_TASK.encode()),
        ("execution.j.id.dispatched.main.1", ADMITTED_TASK.encode()),
        ("execution.j.id.admitted.main.1", ADMITTED_TASK.changed(v=1).encode()),
        ("execution.j.id.admitted.main.1", json_codec.written(ADMITTED_TASK.changed(v=3))),
        ("execution.j.id.admitted.main.1", ADMITTED_TASK.changed(admits=None).encode()),
        ("execution.j.id.dispatched.main.1", ADMITTED_TASK.changed(admits=None).encode()),
        ("trigger.j", b'{"v": 2}'),
        ("trigger.j", b"[]"),
        ("execution", b""),
    ],
)
def test_what_cannot_be_read_says_so(subject: str, body: bytes) -> None:
    with pytest.raises(subjects.DecodeError, match=subject):
        subjects.decode(subject, body)


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        (b'{"input": 3}', [("input", "3", "wrong-type", "object")]),
        (b'{"args": 4, "v": 2}', [("v", "2", "unknown-choice", "1"), ("args", "4", "wrong-type", "list")]),
        (b"[]", [("", None, "wrong-type", "an empty list")]),
        (b"{bad", [("", None, "not-json", "line 1 column 2")]),
        (b"\xff", [("", None, "not-json", "line 1 column 1")]),
        (b'{"by": {"source": "cli"}}', [("by.identity", None, "required", "")]),
        (b'{"backfill": "b"}', [("", None, "invalid-value", "`backfill` and `scheduled_time`")]),
    ],
)
def test_undecodable_message_is_explained(body: bytes, problems: list[tuple[str, str | None, str, str]]) -> None:
    with pytest.raises(subjects.DecodeError, match=r"^trigger\.j: ") as caught:
        subjects.decode("trigger.j", body)
    error = caught.value
    assert [(problem.field, problem.value, problem.code) for problem in error.problems] == [
        (field, value, code) for field, value, code, _ in problems
    ]
    assert all(hint in problem.reason for problem, (*_, hint) in zip(error.problems, problems, strict=True))
    assert all(str(problem) in str(error) for problem in error.problems)


@pytest.mark.parametrize("end", [*subjects.OPENINGS, *subjects.ENDINGS])
def test_opening_and_ending_subjects_lead_to_the_scope(end: str) -> None:
    subject = end.replace("*", JOB, 1).replace("*", ID)
    assert subjects.execution_scope(subject) == subjects.execution(JOB, ID)


def test_empty_trigger_requests_a_plain_run() -> None:
    assert subjects.decode("trigger.j", b"").document(exclude_none=True) == {
        "v": 1,
        "type": "trigger",
        "trigger": "event",
    }


def _matches(pattern: str, subject: str) -> bool:
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1] if len(tokens) >= len(wanted) else []
    return len(wanted) == len(tokens) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))


def test_name_that_is_too_long_names_nothing() -> None:
    for length, name in ((255, "x" * 255), (256, subjects.ANY)):
        assert subjects.job_of(f"trigger.{'x' * length}") == name
        assert subjects.parse_cancel(f"cancel.{'x' * length}.y") == (name, "y")
        assert subjects.parse_completion(f"mq.scheduler.complete.y.{'x' * length}") == ("y", name)


@pytest.mark.parametrize(
    ("subject_filter", "kind"),
    [
        ("public.trigger.>", Trigger),
        ("outside.*.trigger.>", Trigger),
        ("execution.*.*.dispatched.>", Dispatched),
        ("report.*.*.failed.>", Report),
        ("execution.>", Message),
    ],
)
def test_type_of_a_filter(subject_filter: str, kind: type[Message]) -> None:
    assert subjects.type_of(subject_filter) is kind


@pytest.mark.parametrize(
    ("subject", "publisher"),
    [
        ("trigger.a_job", None),
        ("public.trigger.a.job", ""),
        ("outside.shop.trigger.a.job", "shop"),
        ("outside.shop.cancel.a.job.e", "shop"),
        ("outside.*.trigger.a.job", ""),
    ],
)
def test_subject_names_its_publisher(subject: str, publisher: str | None) -> None:
    assert subjects.publisher_of(subject) == publisher
    assert subjects.job_of(subject) == "a.job"
    assert subjects.is_trigger(subject) == ("trigger" in subject)
    assert subjects.stream_of(subject) == ("REQUESTS" if publisher is None else "INPUTS")


def test_filters_overlap_when_one_subject_matches_both() -> None:
    together = [("a.b", "a.b"), ("a.*", "*.b"), ("a.>", "a.b.c"), (">", "a"), ("a.b.c", "a.*.>")]
    apart = [("a.b", "a.c"), ("a.>", "a"), ("a.*", "a.b.c")]
    for pairs, expected in ((together, True), (apart, False)):
        for one, other in pairs:
            assert (subjects.overlap(one, other), subjects.overlap(other, one)) == (expected, expected)
