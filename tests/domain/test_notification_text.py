"""Texts of notifications: complete, bounded, and without effect on the reader's side."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.notification import MAX_OTHER_JOBS, MAX_REASON, MAX_WHY, Kind, Notification
from tocsin.domain.notification_template import (
    MAX_CHAT_BODY,
    MAX_SUBJECT,
    body_of,
    chat_body_of,
    chat_subject_of,
    subject_of,
    without_markup,
)

URL = "https://tocsin.example.com/executions/e1?a=1&b=2"
MENTION = re.compile(r"[<>@＠]|\]\(|&[#A-Za-z]|\x1b|\u202e|\r")


def notification(**fields: Any) -> Notification:  # noqa: ANN401 - as `Notification`
    usual: dict[str, Any] = {"id": "i", "channel": "ops", "job": "a.job", "kind": Kind.FAILED}
    return Notification(**usual | {"at": datetime(2026, 11, 26, 3, 0, tzinfo=UTC)} | fields)


def test_body_has_every_part() -> None:
    full = notification(execution_id="e1", reason="no rows", why="1\n2", url=URL, others=2, other_jobs=("b", "c"))
    assert body_of(full) == (
        "a.job: the execution failed, after its last retry.\n"
        "Time: 2026-11-26T03:00:00Z\n"
        "Execution: e1\n"
        "Reason: no rows\n"
        "\n1\n2\n"
        "\nThis message stands for 2 other notifications too, of the jobs b, c.\n"
        f"\n{URL}"
    )


def test_body_leaves_out_missing_parts() -> None:
    assert body_of(notification()) == ("a.job: the execution failed, after its last retry.\nTime: 2026-11-26T03:00:00Z")


def test_chat_keeps_the_link_and_cuts_the_evidence() -> None:
    text = chat_body_of(notification(reason="r" * MAX_REASON, why="w" * MAX_WHY, url=URL))
    assert text.endswith(f"…\n\n{URL}")
    assert len(text) < 1_900


@pytest.mark.parametrize("url", [None, URL])
def test_longest_chat_message_is_cut(url: str | None) -> None:
    jobs = ("j" * 255,) * MAX_OTHER_JOBS
    sent = notification(job="j" * 255, reason="r" * MAX_REASON, why="w" * MAX_WHY, url=url, others=9, other_jobs=jobs)
    text = chat_body_of(sent)
    assert len(text) == MAX_CHAT_BODY
    assert text.endswith("…" if url is None else f"…\n\n{URL}")


def test_markup_is_visible_text() -> None:
    assert without_markup("<!channel> <@U1> @everyone [Log in](https://evil.test) a && b &#64;all") == (
        "‹!channel› ‹(at)U1› (at)everyone [Log in] (https://evil.test) a && b ＆#64;all"
    )


hostile = st.text(st.sampled_from("<>@＠&#[](a1\x1b\u202e\r\n\ud800é"), max_size=60)


@given(hostile, hostile, hostile, st.sampled_from([None, URL]))
def test_text_of_jobs_has_no_effect_in_chats(job: str, reason: str, why: str, url: str | None) -> None:
    sent = notification(job=job, reason=reason, why=why, execution_id=job, others=1, other_jobs=(job,), url=url)
    assert not MENTION.search(chat_subject_of(sent))
    assert not MENTION.search(chat_body_of(sent).removesuffix(URL))


@given(st.text(max_size=300), st.text(max_size=MAX_REASON), st.text(max_size=MAX_WHY))
def test_texts_are_printable_and_bounded(job: str, reason: str, why: str) -> None:
    sent = notification(job=job, reason=reason, why=why, url=URL, others=9, other_jobs=(job,) * MAX_OTHER_JOBS)
    assert subject_of(sent).isprintable()
    assert len(subject_of(sent)) <= MAX_SUBJECT
    assert body_of(sent).replace("\n", "").isprintable()
    body_of(sent).encode()
