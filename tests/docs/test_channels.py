"""The page on channels: its settings, its JSON and its code."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.notifications.given import SECRET, channel, notification
from tests.worker.builtin.http_given import Server
from tocsin.adapters.notifications.webhook import body_of
from tocsin.domain.notification import Kind
from tocsin.settings import load

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
    assert re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE) == list(sent)


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
