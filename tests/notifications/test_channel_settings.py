"""Settings of channels: what is refused, in which words, and what is never shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.notifications.given import SECRET
from tocsin.settings import MASK, SettingsError, load, shown
from tocsin.settings.channels import EmailChannel, WebhookChannel

WEBHOOK = {"type": "webhook", "url": "https://example.com/T0KEN"}
EMAIL = {"type": "email", "host": "mail.example.com", "sender": "t@example.com", "recipients": ["a@example.com"]}
FIELD = "notifications.channels.ops"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def write(tmp_path: Path, ops: object, name: str = "ops") -> Path:
    path = tmp_path / "tocsin.yaml"
    path.write_text(json.dumps({"notifications": {"channels": {name: ops}}}), "utf-8")
    return path


def refusals(tmp_path: Path, ops: object, name: str = "ops") -> list[tuple[str | None, str]]:
    with pytest.raises(SettingsError) as raised:
        load(write(tmp_path, ops, name))
    assert "hunter2" not in str(raised.value)
    return [(problem.field, str(problem)) for problem in raised.value.problems]


def test_each_type_of_channel_is_read(tmp_path: Path) -> None:
    webhook = load(write(tmp_path, WEBHOOK)).notifications.channels["ops"]
    assert isinstance(webhook, WebhookChannel)
    assert webhook.url.get_secret_value() == "https://example.com/T0KEN"
    email = load(write(tmp_path, EMAIL)).notifications.channels["ops"]
    assert isinstance(email, EmailChannel)
    assert (email.tls, email.server_port) == ("starttls", 587)


@pytest.mark.parametrize(("tls", "port"), [("starttls", 587), ("tls", 465), ("none", 25)])
def test_encryption_decides_on_the_port(tls: str, port: int) -> None:
    assert EmailChannel.model_validate(EMAIL | {"tls": tls}).server_port == port
    assert EmailChannel.model_validate(EMAIL | {"tls": tls, "port": 2525}).server_port == 2525


def test_secret_comes_from_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_NOTIFICATIONS__CHANNELS__OPS__SECRET", SECRET)
    monkeypatch.setenv("HOOK", "https://example.com/other")
    channel = load(write(tmp_path, {"type": "webhook", "url": "${HOOK}"})).notifications.channels["ops"]
    assert isinstance(channel, WebhookChannel)
    assert channel.secret is not None
    assert (channel.url.get_secret_value(), channel.secret.get_secret_value()) == ("https://example.com/other", SECRET)


def test_secrets_are_masked(tmp_path: Path) -> None:
    written = {**WEBHOOK, "secret": SECRET, "headers": {"Authorization": "hunter2"}}
    fields = shown(load(write(tmp_path, written)))
    assert {fields[f"{FIELD}.{name}"] for name in ("url", "secret", "headers.Authorization")} == {MASK}
    fields = shown(load(write(tmp_path, {**EMAIL, "user": "t", "password": "hunter2"})))
    assert (fields[f"{FIELD}.password"], fields[f"{FIELD}.user"]) == (MASK, "t")
    fields = shown(load(write(tmp_path, {"type": "apprise", "url": "slack://hunter2"})))
    assert fields[f"{FIELD}.url"] == MASK


def test_templates_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTING_KEY", "hunter2")
    webhook = {**WEBHOOK, "body": '{"routing_key": "${ROUTING_KEY}", "text": "{{ title }}"}'}
    texts = {"subject": "${ROUTING_KEY} {{ job }}", "body": "${ROUTING_KEY} {{ job }}"}
    for ops in (webhook, EMAIL | texts, {"type": "apprise", "url": "slack://a", **texts}):
        settings = load(write(tmp_path, ops))
        assert shown(settings)[f"{FIELD}.body"] == MASK
        assert "hunter2" not in f"{shown(settings)} {settings!r} {settings.model_dump(mode='json')}"


@pytest.mark.parametrize(
    ("ops", "field", "words"),
    [
        ({"type": "slack"}, f"{FIELD}.type", 'is "slack": must be one of `nats`, `webhook`, `email` and `apprise`'),
        ({"url": "hunter2"}, f"{FIELD}.type", "must be one of"),
        ("https://example.com/hunter2", FIELD, "must be a valid dictionary"),
        ({**WEBHOOK, "urll": "hunter2"}, f"{FIELD}.urll", f"did you mean `{FIELD}.url`"),
        ({**WEBHOOK, "port": 1}, f"{FIELD}.port", "`ca_file`, `headers`, `secret`"),
        ({**WEBHOOK, "url": "hunter2"}, f"{FIELD}.url", "must be http(s)://"),
        ({**WEBHOOK, "url": "ftp://example.com/hunter2"}, f"{FIELD}.url", "must be http(s)://"),
        ({**WEBHOOK, "url": "https://example.com/#hunter2"}, f"{FIELD}.url", "without a fragment"),
        ({**WEBHOOK, "secret": "hunter2"}, f"{FIELD}.secret", "must be `whsec_`"),
        ({**WEBHOOK, "secret": "whsec_hunter2"}, f"{FIELD}.secret", "24 to 64 random bytes"),
        ({**WEBHOOK, "headers": {"Host": "x"}}, f"{FIELD}.headers", "Host is set by Tocsin"),
        ({**WEBHOOK, "headers": {"Webhook-Id": "x"}}, f"{FIELD}.headers", "Webhook-Id is set by Tocsin"),
        ({**WEBHOOK, "headers": {"X A": "x"}}, f"{FIELD}.headers", "'X A' is not the name"),
        (
            {**WEBHOOK, "headers": {"X-A": "hunter2\r\nX-B: 1"}},
            f"{FIELD}.headers",
            "the value of X-A must be printable",
        ),
        ({**WEBHOOK, "headers": {"X-A": "hunter2 "}}, f"{FIELD}.headers", "without blanks around it"),
        ({**WEBHOOK, "headers": {"X-A": "\thunter2"}}, f"{FIELD}.headers", "without blanks around it"),
        ({**WEBHOOK, "headers": {"X-A": "1", "x-a": "2"}}, f"{FIELD}.headers", "set twice"),
        ({**WEBHOOK, "headers": "hunter2"}, f"{FIELD}.headers", "dictionary"),
        ({**WEBHOOK, "headers": {"X-A": ["hunter2"]}}, f"{FIELD}.headers.X-A", "string"),
        ({**WEBHOOK, "timeout": "2m"}, f"{FIELD}.timeout", "less than or equal to 50"),
        ({**EMAIL, "host": "mail.example.com:25"}, f"{FIELD}.host", "without a port"),
        ({**EMAIL, "sender": "T <t@example.com>"}, f"{FIELD}.sender", "must be an address"),
        (
            {**EMAIL, "recipients": ["a@b.test", "a@b.test\nBcc: b@b.test"]},
            f"{FIELD}.recipients.1",
            "must be an address",
        ),
        ({**EMAIL, "recipients": ["a@b.test", ".@b.test"]}, f"{FIELD}.recipients.1", "must be an address"),
        ({**EMAIL, "recipients": []}, f"{FIELD}.recipients", "at least 1"),
        ({**EMAIL, "recipients": ["a@example.com"] * 51}, f"{FIELD}.recipients", "at most 50"),
        ({**EMAIL, "user": "t"}, FIELD, "set both or none"),
        ({**EMAIL, "tls": "none", "user": "t", "password": "hunter2"}, FIELD, "`password` needs `tls: starttls`"),
        ({"type": "apprise", "url": "hunter2"}, f"{FIELD}.url", "must be a URL of Apprise"),
        (
            {**WEBHOOK, "body": '{"routing_key": "hunter2", "a": {{ job }}}'},
            f"{FIELD}.body",
            "the template makes no JSON",
        ),
        ({**WEBHOOK, "body": '{"routing_key": "hunter2", "a": "{{ jop }}"}'}, f"{FIELD}.body", "`jop` is no name"),
        ({**WEBHOOK, "body": '{"routing_key": "hunter2", "a": "{{ job"}'}, f"{FIELD}.body", "no readable template"),
        ({**WEBHOOK, "body": {"routing_key": "hunter2"}}, f"{FIELD}.body", "string"),
        ({**EMAIL, "subject": "hunter2 {{ jop }}"}, f"{FIELD}.subject", "`jop` is no name of a template"),
        ({**EMAIL, "body": "hunter2 {{ jop }}"}, f"{FIELD}.body", "`jop` is no name of a template"),
        ({**EMAIL, "subject": "{{ jop }}"}, f"{FIELD}.subject", "`jop` is no name of a template; the names are"),
        ({**EMAIL, "body": "{{ job.owner }}"}, f"{FIELD}.body", "has no attribute 'owner'"),
        ({**WEBHOOK, "body": '{"a": {{ job }}}'}, f"{FIELD}.body", "the template makes no JSON"),
        ({**WEBHOOK, "subject": "{{ job }}"}, f"{FIELD}.subject", "did you mean"),
        ({"type": "nats", "body": "{{ job }}"}, f"{FIELD}.body", "the settings here are"),
    ],
)
def test_wrong_setting_is_refused(tmp_path: Path, ops: object, field: str, words: str) -> None:
    [(named, text)] = refusals(tmp_path, ops)
    assert named == field
    assert words in text


@pytest.mark.parametrize("name", ["Ops!", "a.b.c", ".ops", "a." + "b" * 65])
def test_wrong_name_of_a_channel_is_refused(tmp_path: Path, name: str) -> None:
    [(field, text)] = refusals(tmp_path, WEBHOOK, name)
    assert field == f"notifications.channels.{name}"
    assert "small letters" in text


def test_channel_may_be_in_a_namespace(tmp_path: Path) -> None:
    assert "payments.ops" in load(write(tmp_path, WEBHOOK, "payments.ops")).notifications.channels


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_password_may_stay_on_this_machine(host: str) -> None:
    fields: dict[str, Any] = {**EMAIL, "host": host, "tls": "none", "user": "t", "password": "hunter2"}
    assert EmailChannel.model_validate(fields).password is not None
