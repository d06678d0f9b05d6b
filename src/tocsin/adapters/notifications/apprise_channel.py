"""Messages through Apprise, which knows Slack, Teams, PagerDuty and others."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from ...domain.definition import DefinitionProblem
from ...domain.http_answer import is_retryable
from ...domain.notification import Kind, Notification
from ...domain.notification_template import chat_body_by, chat_body_of, chat_subject_by, chat_subject_of
from ...ports import ChannelRefused
from ...settings import SettingsError
from ...settings.channels import AppriseChannel
from .webhook import by_template

CHECK_TIMEOUT_S: Final = 30.0
"""Seconds for the check of a URL, which sends nothing."""
_COMMAND: Final = (sys.executable, "-P", str(Path(__file__).with_name("apprise_process.py")))
_INHERITED: Final = frozenset(
    {
        *("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"),
        *("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
        *("DYLD_LIBRARY_PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TZ"),
    }
)
"""Variables of this process that Apprise gets, also in small letters. It gets no secrets of other parts."""
_TYPES: Final = {
    Kind.RECOVERED: "success",
    Kind.LATE: "warning",
    Kind.SKIPPED: "warning",
    Kind.SLOW: "warning",
    Kind.WORKER_LOST: "warning",
}
"""The types of Apprise, which decide on colors and severities; `failure` for the other kinds."""


class _Answer(NamedTuple):
    outcome: str
    """`done`, `failed` or `unknown-url`; `killed`: the process gave no answer."""
    status: int | None = None


class AppriseMessages:
    """Sends notifications through a URL of Apprise."""

    def __init__(self, name: str, settings: AppriseChannel) -> None:
        self._name = name
        self._url = settings.url.get_secret_value()
        self._timeout = settings.timeout
        self._subject, self._body = settings.subject, settings.body

    def check(self) -> None:
        """Check the URL without sending anything, or raise `SettingsError`."""
        try:
            checked = subprocess.run(  # noqa: S603 - the program is our own
                _COMMAND,
                input=self._order("check"),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                timeout=CHECK_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return  # the machine is slow; the first notification shows whether the URL is right
        if _read(checked.stdout).outcome == "unknown-url":
            reason = "Apprise cannot use this URL: it must be one URL of a service, with all its parts"
            raise SettingsError(DefinitionProblem(reason, field=f"notifications.channels.{self._name}.url"))

    async def send(self, notification: Notification) -> None:
        order = self._order(
            "send",
            title=by_template(self._subject, notification, chat_subject_by, chat_subject_of),
            body=by_template(self._body, notification, chat_body_by, chat_body_of),
            type=_TYPES.get(notification.kind, "failure"),
        )
        try:
            async with asyncio.timeout(self._timeout):
                answer = await _run(order)
        except TimeoutError:
            message = f"the service of the channel {self._name} did not answer within {self._timeout:g} s"
            raise ChannelRefused(message, retryable=True) from None
        if answer.outcome == "done":
            return
        if answer.outcome == "unknown-url":
            raise ChannelRefused(f"Apprise cannot use the URL of the channel {self._name}", retryable=False)
        if answer.outcome == "killed":
            raise ChannelRefused(f"the process of Apprise for the channel {self._name} died", retryable=True)
        if answer.status is None:
            raise ChannelRefused(f"Apprise could not reach the service of the channel {self._name}", retryable=True)
        message = f"the service of the channel {self._name} answered {answer.status} to Apprise"
        raise ChannelRefused(message, retryable=is_retryable(answer.status))

    def _order(self, action: str, **message: str) -> bytes:
        return json.dumps({"action": action, "url": self._url, **message}).encode()


async def _run(order: bytes) -> _Answer:
    """Run the process of Apprise, and kill it if this is cancelled."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environment(),
    )
    try:
        output, _ = await process.communicate(order)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return _read(output)


def _read(output: bytes) -> _Answer:
    return _Answer(**json.loads(output)) if output else _Answer("killed")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.upper() in _INHERITED}
