"""The page on channels: its settings, its JSON and its code."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.notifications.given import SECRET, channel, notification
from tests.worker.builtin.http_given import Server
from tocsin.adapters.notifications.mail import message_of
from tocsin.adapters.notifications.webhook import body_of
from tocsin.domain.notification import Kind
from tocsin.domain.notification_template import NAMES
from tocsin.settings import load
from tocsin.settings.channels import EmailChannel, WebhookChannel

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "channels.md").read_text("utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_settings_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WEBHOOK_SECRET", SECRET), ("SMTP_PASSWORD", "hunter2"), ("CHAT_URL", "slack://a/b/c")):
        monkeypatch.setenv(name, value)
    path = tmp_path / "tocsin.yaml"
    path.write_text(block("yaml"), "utf-8")
    assert list(load(path).notifications.channels) == ["incidents", "team", "chat"]


def test_json_has_the_fields_that_are_sent() -> None:
    example = json.loads(block("json"))
    sent = body_of(notification(others=1, other_jobs=("a",)))
    assert {name: type(value) for name, value in example.items()} == {name: type(value) for name, value in sent.items()}
    assert all(f"`{kind}`" in PAGE for kind in Kind)
    webhooks = PAGE.partition("## Texts of your own")[0]
    assert re.findall(r"^\| `(\w+)` \| ", webhooks, re.MULTILINE) == list(sent)


def test_table_has_the_names_of_templates() -> None:
    section = PAGE.partition("## Texts of your own")[2].partition("\n## ")[0]
    named = [
        name for row in re.findall(r"^\| (`.*?`) \| ", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(named) == sorted(NAMES)


async def test_templates_of_the_page_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [written] = re.findall(r"## Texts of your own.*?```yaml\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.setenv("CHAT_WEBHOOK", "https://chat.example.com/T0KEN")
    path = tmp_path / "tocsin.yaml"
    path.write_text(written, "utf-8")
    chat, team = load(path).notifications.channels.values()
    assert isinstance(chat, WebhookChannel)
    assert isinstance(team, EmailChannel)
    async with Server().running() as server:
        await channel(type="webhook", url=server.url, body=chat.body).send(notification())
    assert json.loads(server.requests[0].partition(b"\r\n\r\n")[2]) == {
        "text": "orders.nightly failed: ValueError: no rows\nhttps://tocsin.example.com/executions/e1?a=1&b=2"
    }
    assert message_of(notification(), team)["Subject"] == "[production] orders.nightly failed"


async def test_code_verifies_the_signature() -> None:
    code: dict[str, Any] = {}
    exec(block("python"), code)  # noqa: S102 - the page's own code
    async with Server().running() as server:
        await channel(type="webhook", url=server.url + "/", secret=SECRET).send(notification())
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert code["is_authentic"](SECRET, headers, body)
    assert not code["is_authentic"](SECRET, headers, body + b" ")
    assert not code["is_authentic"](SECRET.replace("M", "N"), headers, body)
    assert not code["is_authentic"](SECRET, headers | {"webhook-timestamp": str(int(time.time()) - 400)}, body)
