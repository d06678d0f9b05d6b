"""Messages without their tokens, and jobs as they are registered now."""

import pytest

from tests.domain.given import ID, JOB, KEY, NOON, admitted, recorded, report
from tests.domain.test_ledger import Log, at, job
from tocsin.domain import execution, ledger
from tocsin.domain.access import MASK, masked
from tocsin.domain.events import Actor, EnvelopeData, Message
from tocsin.domain.job_record import Registration

[TASK] = execution.dispatch(execution.fold(recorded([admitted()])), key=KEY)
ENVELOPE = EnvelopeData(
    job_name=JOB,
    execution_id=ID,
    function="f",
    attempt=1,
    timeout=30,
    step="main",
    token="secret",
    scheduled_time=NOON,
    trigger="cron",
    fence=3,
)


@pytest.mark.parametrize("message", [TASK, ENVELOPE, report("completed", token="secret")])
def test_a_token_is_masked_and_nothing_else(message: Message) -> None:
    shown = masked(message)
    assert shown == message.changed(token=MASK)
    assert shown != message


def test_without_a_token_nothing_is_masked() -> None:
    assert masked(admitted()) == admitted()


def test_a_registration_shows_the_newest_definition() -> None:
    log = Log()
    log.store(ledger.define(log.state, job(), by=Actor(identity="ada")), at("09:30:00"))
    log.define(job("30 * * * *"), at("09:40:00"))
    log.store(ledger.pause(log.state, "nightly"), at("09:50:00"))
    assert Registration.of(log.state) == Registration(
        definition=job("30 * * * *"),
        paused=True,
        sequence=3,
        defined_at=at("09:40:00"),
        created_at=at("09:30:00"),
        created_by="ada",
    )


def test_what_is_not_registered_is_not_shown() -> None:
    log = Log()
    assert Registration.of(log.state) is None
    log.define(job(), at("09:30:00"))
    log.store(ledger.delete(log.state, "nightly"), at("09:40:00"))
    assert Registration.of(log.state) is None
