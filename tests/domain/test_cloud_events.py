"""Public events as CloudEvents: their attributes."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import pytest

from tocsin.domain.events import (
    CronAlert,
    CronAlertData,
    CronAnswer,
    CronAnswerData,
    CronMissed,
    CronMissedData,
    CronSkipped,
    CronSkippedData,
    CronTriggered,
    CronTriggeredData,
    PublicEvent,
)
from tocsin.domain.formats.cloud_events import headers_of
from tocsin.domain.notification import Kind

AT: Final = datetime(2026, 2, 12, 14, tzinfo=UTC)
EXECUTION: Final = "019b76da-a800-76fb-abdc-caef73f35cd6"
JOB: Final[dict[str, Any]] = {"cron_name": "täglich 50%", "cron_expression": "0 9 * * *", "timezone": "UTC"}


def triggered(job_id: str = "019b76da-a800-76fb-abdc-caef73f35cd6") -> CronTriggered:
    data = CronTriggeredData(**JOB, job_id=job_id, job_type="f", run_count=1, scheduled_time=AT, actual_time=AT)
    return CronTriggered(timestamp=AT, data=data)


def skipped(at: datetime = AT, *, dst: bool = False) -> CronSkipped:
    data = CronSkippedData(**JOB, reason="dst_skip" if dst else "overlap_skip", scheduled_time=at)
    return CronSkipped(timestamp=AT, data=data)


def missed(until: datetime = AT) -> CronMissed:
    data = CronMissedData(**JOB, reason="missed", count=2, start=AT - timedelta(hours=1), until=until)
    return CronMissed(timestamp=AT, data=data)


def answered(trigger_id: str = "order-17", *, job_id: str | None = None) -> CronAnswer:
    data = CronAnswerData(cron_name="j", trigger_id=trigger_id, answer="skipped", code="lock_held", job_id=job_id)
    return CronAnswer(timestamp=AT, data=data)


def alerted(job_id: str | None = None) -> CronAlert:
    id_ = "019b76da-a800-7c5e-9f54-0c4cf3a0a4b1"
    return CronAlert(
        timestamp=AT, data=CronAlertData(cron_name="j", id=id_, channel="ops", kind=Kind.FAILED, job_id=job_id)
    )


@pytest.mark.parametrize(
    ("event", "kind", "subject"),
    [
        (triggered(), "org.openjobspec.cron.triggered", "019b76da-a800-76fb-abdc-caef73f35cd6"),
        (skipped(), "org.openjobspec.cron.skipped", "t%C3%A4glich%2050%25"),
        (missed(), "org.openjobspec.x.cron.missed", "t%C3%A4glich%2050%25"),
        (answered(), "org.openjobspec.x.cron.answer", "j"),
        (alerted(), "org.openjobspec.x.cron.alert", "j"),
        (alerted(EXECUTION), "org.openjobspec.x.cron.alert", EXECUTION),
    ],
)
def test_event_has_the_attributes_of_cloud_events(event: PublicEvent | CronAlert, kind: str, subject: str) -> None:
    headers = dict(headers_of(event, "/tocsin"))
    assert len(headers.pop("ce-id")) == 36
    assert headers == {
        "ce-specversion": "1.0",
        "ce-source": "/tocsin",
        "ce-type": kind,
        "ce-time": "2026-02-12T14:00:00Z",
        "ce-subject": subject,
        "ce-datacontenttype": "application/json",
    }
    assert unquote(headers["ce-subject"]) in {"täglich 50%", "j", "019b76da-a800-76fb-abdc-caef73f35cd6"}


def test_ids_tell_events_apart() -> None:
    later = AT + timedelta(minutes=1)
    events: list[PublicEvent] = [
        *(triggered(), triggered("019b76da-a800-76fb-abdc-caef73f35cd7")),
        *(skipped(), skipped(later), skipped(dst=True), missed(), missed(later)),
        *(answered(), answered("order-18"), answered(job_id="019b76da-a800-76fb-abdc-caef73f35cd6")),
    ]
    assert len({headers_of(event, "/tocsin")["ce-id"] for event in events}) == len(events)
    assert headers_of(triggered(), "/tocsin") == headers_of(triggered(), "/tocsin")


def test_trace_is_an_extension_attribute() -> None:
    event, traceparent = triggered(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    traced = event.changed(data=event.data.changed(traceparent=traceparent))
    assert headers_of(traced, "/tocsin")["ce-traceparent"] == traceparent
    assert "ce-traceparent" not in headers_of(event, "/tocsin")


def test_headers_are_printable_ascii() -> None:
    event = triggered()
    strange = event.data.changed(job_id='a "b"\r\nNats-Rollup: all\x00é')
    value = headers_of(event.changed(data=strange), "/tocsin")["ce-subject"]
    assert value == "a%20%22b%22%0D%0ANats-Rollup:%20all%00%C3%A9"
