"""Templates of operators: what real receivers get, what is refused at the start, and that none loses a notification."""

import json
import re
from collections.abc import AsyncIterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.notifications.given import HOSTILE, ID, channel, notification
from tests.notifications.mail_server import Mailbox
from tests.worker.builtin.http_given import Server
from tocsin.domain.notification import Kind, Notification
from tocsin.domain.notification_template import (
    MAX_BODY,
    MAX_CHAT_BODY,
    MAX_SUBJECT,
    NAMES,
    body_by,
    chat_body_by,
    chat_subject_by,
    check,
    check_subject,
    json_by,
    subject_by,
)
from tocsin.domain.template import TemplateError
from tocsin.ports import NotificationChannel

ALL = " ".join(f"{{{{ {name} }}}}" for name in sorted(NAMES))
SLACK = '{"text": "<!here> {{ title }}: {{ reason }}\\n{{ url }}", "count": {{ others }}, "jobs": {{ other_jobs }}}'
check_json = partial(check, json_by)
ONLY_LATER = "{% if job == 'orders.nightly' %}{{ job.owner }}{% endif %}"
"""A template that passes with the samples, and fails with the job of these tests."""


@pytest.fixture
async def mailbox() -> AsyncIterator[Mailbox]:
    async with Mailbox().running() as running:
        yield running


def mail(mailbox: Mailbox, **templates: str) -> NotificationChannel:
    return channel(
        type="email",
        host="127.0.0.1",
        port=mailbox.port,
        tls="none",
        sender="tocsin@example.com",
        recipients=["a@example.com"],
        **templates,
    )


def content_of(server: Server) -> object:
    [request] = server.requests
    return json.loads(request.partition(b"\r\n\r\n")[2])


async def test_mail_has_the_text_of_the_settings(mailbox: Mailbox) -> None:
    templates = {"subject": "[{{ channel }}]\n{{ title | upper }}", "body": "{{ meaning }}\n\n{{ why }}\n{{ url }}"}
    await mail(mailbox, **templates).send(notification(reason="Überlauf ☃", others=2))
    [message] = mailbox.messages
    assert message["Subject"] == "[ops] ORDERS.NIGHTLY FAILED (AND 2 MORE)"
    assert str(message.get_content()).replace("\r\n", "\n") == (
        "the execution failed, after its last retry\n\nattempt 1 failed\nattempt 2 failed\n"
        "https://tocsin.example.com/executions/e1?a=1&b=2\n"
    )


async def test_texts_of_jobs_add_no_header(mailbox: Mailbox) -> None:
    templates = {"subject": "{{ job }}{{ reason }}{{ why }}", "body": ALL}
    await mail(mailbox, **templates).send(notification(job=HOSTILE, reason=HOSTILE, why=HOSTILE))
    [message], [envelope] = mailbox.messages, mailbox.envelopes
    assert message["Bcc"] is None
    assert envelope.rcpt_tos == ["a@example.com"]
    assert not any(char in message["Subject"] + str(message.get_content()) for char in "\x1b\u202e")


async def test_webhook_has_the_json_of_the_settings(server: Server) -> None:
    sent = notification(reason='a "quoted"\nline', others=2, other_jobs=("a", "b"))
    await channel(type="webhook", url=server.url, body=SLACK).send(sent)
    assert content_of(server) == {
        "text": '<!here> orders.nightly failed (and 2 more): a "quoted"\nline\nhttps://tocsin.example.com/executions/e1?a=1&b=2',
        "count": 2,
        "jobs": ["a", "b"],
    }


async def test_texts_of_jobs_mention_no_person(server: Server) -> None:
    body = '{"a": "{{ job }}{{ reason }}{{ why }}", "b": {{ other_jobs }}}'
    hostile = notification(job=HOSTILE, reason=HOSTILE, why=HOSTILE, other_jobs=(HOSTILE,))
    await channel(type="webhook", url=server.url, body=body).send(hostile)
    text = json.dumps(content_of(server), ensure_ascii=False)
    assert not [part for part in ("<", "@", "](", "\x1b", "\u202e") if part in text]


async def test_chat_has_the_text_of_the_settings(server: Server) -> None:
    url = f"json://127.0.0.1:{server.port}/"
    chat = channel(type="apprise", url=url, subject="<!here> {{ job }}", body="{{ reason }} {{ execution_id }}")
    await chat.send(notification(reason="<!channel> @everyone"))
    content = content_of(server)
    assert isinstance(content, dict)
    assert (content["title"], content["message"]) == ("<!here> orders.nightly", "‹!channel› (at)everyone e1")


async def test_infinite_number_sends_the_usual_json(server: Server) -> None:
    body = '{"a": {% if job == "orders.nightly" %}1e999{% else %}1{% endif %}}'
    await channel(type="webhook", url=server.url, body=body).send(notification())
    content = content_of(server)
    assert isinstance(content, dict)
    assert content["job"] == "orders.nightly"


async def test_failing_template_loses_no_notification(server: Server, mailbox: Mailbox) -> None:
    await mail(mailbox, subject="x" + ONLY_LATER, body=ONLY_LATER).send(notification())
    [message] = mailbox.messages
    assert message["Subject"] == "orders.nightly failed"
    assert "Reason: ValueError: no rows" in str(message.get_content())
    await channel(type="webhook", url=server.url, body='{"a": "' + ONLY_LATER + '"}').send(notification())
    content = content_of(server)
    assert isinstance(content, dict)
    assert content["id"] == ID


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ jobs }}", "`jobs` is no name of a template; the names are at, channel, execution_id, id, job, kind"),
        ("{{ job.owner }}", "has no attribute 'owner'"),
        ("{{ other_jobs[0] }}", "has no element 0"),
        ("{% if kind == 'slow' %}{{ job.owner }}{% endif %}", "has no attribute 'owner'"),
        ("{% for x in other_jobs %}{{ x }}{% endfor %}", "a template has no For"),
        ("{{ job.__class__ }}", "has no attribute '__class__'"),
        ("{{ why * 1000 }}", "a template has no Mul"),
        ("{{ why()", "no readable template"),
        ("{{ why }}" * 60, "more than 50,000 characters"),
        ("x" * 10_001, "at most 10,000 characters"),
    ],
)
def test_wrong_template_is_refused(template: str, words: str) -> None:
    for check_part in (check_subject, partial(check, body_by), check_json):
        with pytest.raises(TemplateError) as raised:
            check_part(f'{{"a": "{template}"}}' if check_part is check_json else f"x{template}")
        assert words in str(raised.value)


@pytest.mark.parametrize("template", ["", " \n", "{{ url }}", "{% if kind == 'failed' %}failed{% endif %}"])
def test_subject_is_never_empty(template: str) -> None:
    with pytest.raises(TemplateError, match="an empty subject of a notification of the kind"):
        check_subject(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ title }}",
        '{"a": {{ reason }}}',
        '{"a": "{{ other_jobs }}"}',
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": [-1e999]}',
        '{"a": {{ reason | length }}e{{ why | length }}}',
        "[" * 9_000,
        "",
    ],
)
def test_webhook_sends_only_json(template: str) -> None:
    with pytest.raises(TemplateError, match="JSON"):
        check_json(template)


def test_filter_that_json_does_already_is_refused() -> None:
    with pytest.raises(TemplateError, match="leave the filter `tojson` out"):
        check_json('{"a": {{ title | tojson }}}')


EFFECT = re.compile(r"[<>@＠]|\]\(|&[#A-Za-z]")
texts = st.text(max_size=300) | st.text(st.sampled_from('<>@＠&#[]()"\\{}%a1\x1b\u202e\r\n\ud800é'), max_size=60)
sent = st.builds(
    notification,
    job=texts,
    kind=st.sampled_from(Kind),
    reason=texts,
    why=texts,
    others=st.integers(0, 10**9),
    other_jobs=st.lists(texts, max_size=5).map(tuple),
    execution_id=st.none() | texts,
    url=st.none() | st.just("https://tocsin.example.com/"),
)


@given(sent)
def test_any_notification_has_its_text(sent: Notification) -> None:
    assert subject_by(ALL, sent).isprintable()
    assert 0 < len(chat_subject_by(ALL, sent)) <= MAX_SUBJECT
    assert body_by(ALL, sent).replace("\n", "").isprintable()
    assert len(body_by("{{ why }}" * 80, sent)) <= MAX_BODY
    assert len(chat_body_by(ALL * 3, sent)) <= MAX_CHAT_BODY
    assert isinstance(json_by(SLACK, sent), dict)


@given(sent)
def test_values_are_never_templates(sent: Notification) -> None:
    hostile = notification(job=sent.job, reason="{{ job }}{% if %}{#", why=sent.why)
    assert body_by("{{ reason }}", hostile) == "{{ job }}{% if %}{#"


expressions = st.sampled_from(
    [
        *("{{ job }}", "{{ reason }}", "{{ why }}", "{{ reason | trim }}", "{{ why | trim }}", "{{ url ~ reason }}"),
        *("{{ other_jobs | join }}", "{{ job ~ reason }}", "{% if reason %}{{ reason | last }}{% endif %}"),
        *("{{ (job ~ why) | trim }}", "{% if why %}{{ why | first }}{% endif %}", " ", "(", "&"),
    ]
)
values = texts | st.sampled_from(["click [here]", " (https://evil)", "& ", "lt;", " ", "", "&", "[a", "](b)", "(b)"])


@given(st.lists(expressions, min_size=2, max_size=5), values, values, values)
def test_filtered_and_joined_values_have_no_effect(parts: list[str], job: str, reason: str, why: str) -> None:
    sent = notification(job=job, reason=reason, why=why, other_jobs=(why, reason), url=None)
    document = json_by(json.dumps({"a": "".join(parts)}), sent)
    assert isinstance(document, dict)
    for text in (chat_body_by("".join(parts), sent), chat_subject_by("x" + "".join(parts), sent), str(document["a"])):
        assert not EFFECT.search(text)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ reason | trim }}{{ why | trim }}", "click [here］（https://evil)"),
        ("{{ reason }}({{ job }})", "click [here］(& )"),
        ("{{ job | trim }}lt;", "＆lt;"),
        ("[text]{{ why | trim }}", "[text]（https://evil)"),
        ("&{{ reason }}", "＆click [here］"),
        ("&#{% if job %}{{ reason }}{% endif %}", "＆#click [here］"),
        ("&l {{- reason }}", "＆lclick [here］"),
        ("R&D & {{ reason }}", "R&D & click [here］"),
        ("{{ url }}", "https://tocsin.example.com/executions/e1?a=1&b=2"),
    ],
)
def test_filters_make_no_markup(template: str, text: str) -> None:
    sent = notification(job="& ", reason="click [here]", why=" (https://evil)")
    assert chat_body_by(template, sent) == text
    assert json_by(json.dumps({"a": template}), sent) == {"a": text}
