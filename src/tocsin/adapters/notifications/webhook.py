"""Webhooks: a POST request for each notification, signed as Standard Webhooks define it.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import JsonValue, SecretStr

from ... import telemetry
from ...domain.definition import DefinitionProblem
from ...domain.http_answer import is_retryable, retry_after
from ...domain.notification import Notification
from ...domain.notification_template import json_by
from ...domain.template import TemplateError
from ...domain.text import printable, utc_text
from ...ports import ChannelRefused, Clock
from ...settings import SettingsError
from ...settings.channels import WebhookChannel, webhook_key

MAX_ERROR: Final = 200
"""Characters of the reason why a receiver cannot be reached."""
_GONE: Final = 410

T = TypeVar("T")

_log: Final = telemetry.get_logger("tocsin.notifier")


def by_template(
    template: SecretStr | None,
    notification: Notification,
    render: Callable[[str, Notification], T],
    usual: Callable[[Notification], T],
) -> T:
    """Return a text by a template, or the usual text without a template.

    A template was tried with samples at the start. If it fails with a real notification, this must not be lost.
    """
    if template is None:
        return usual(notification)
    try:
        return render(template.get_secret_value(), notification)
    except TemplateError as error:
        _log.warning(
            "template of a channel failed; the usual text is sent",
            action="notification-template-failed",
            channel=notification.channel,
            job=notification.job,
            notification=notification.id,
            error=str(error),
            **({} if notification.execution_id is None else {"execution_id": notification.execution_id}),
        )
        return usual(notification)


def trusted(ca_file: str | None, channel: str) -> ssl.SSLContext:
    """Trust the public authorities, and the authorities in a file."""
    context = httpx.create_ssl_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            field = f"notifications.channels.{channel}.ca_file"
            problem = DefinitionProblem(
                f"no readable certificates: {error}", field=field, value=ca_file, code="file-unreadable"
            )
            raise SettingsError(problem) from None
    return context


class Webhook:
    """Sends notifications to a URL."""

    def __init__(self, name: str, settings: WebhookChannel, clock: Clock, version: str) -> None:
        self._url = settings.url.get_secret_value()
        self._key = None if settings.secret is None else webhook_key(settings.secret.get_secret_value())
        self._headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        self._body = settings.body
        self._timeout = settings.timeout
        self._tls = trusted(settings.ca_file, name)
        self._clock = clock
        self._agent = f"tocsin/{version}"
        parts = urlsplit(self._url)
        self._receiver = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        """The part of the URL that is no secret."""

    async def send(self, notification: Notification) -> None:
        document = by_template(self._body, notification, json_by, body_of)
        content = json.dumps(document, separators=(",", ":")).encode()
        headers = httpx.Headers({"User-Agent": self._agent, "Content-Type": "application/json"})
        headers.update(self._headers)
        headers.update(self._signed(notification.id, content))
        try:
            async with (
                asyncio.timeout(self._timeout),
                httpx.AsyncClient(verify=self._tls, timeout=self._timeout) as client,
                client.stream("POST", self._url, content=content, headers=headers) as response,
            ):
                refusal = self._refusal(response)
        except TimeoutError:
            raise ChannelRefused(
                f"{self._receiver} did not answer within {self._timeout:g} s", retryable=True
            ) from None
        except httpx.ProtocolError as error:  # its text repeats parts of the request or the answer
            raise ChannelRefused(f"{self._receiver} cannot be reached: {_reason(error)}", retryable=True) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            reason = printable(str(error)[:MAX_ERROR]) or type(error).__name__
            raise ChannelRefused(f"{self._receiver} cannot be reached: {reason}", retryable=True) from None
        if refusal is not None:
            raise refusal

    def _signed(self, id_: str, content: bytes) -> dict[str, str]:
        """Return the headers by which a receiver recognizes a notification, and its sender."""
        at = str(int(self._clock.now().timestamp()))
        headers = {"webhook-id": id_, "webhook-timestamp": at}
        if self._key is not None:
            digest = hmac.digest(self._key, f"{id_}.{at}.".encode() + content, hashlib.sha256)
            headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
        return headers

    def _refusal(self, response: httpx.Response) -> ChannelRefused | None:
        """Return the meaning of a status that is no success. The body is not read."""
        status = response.status_code
        if response.is_success:
            return None
        hint = ""
        if response.has_redirect_location:
            hint = "; redirects are not followed, so write the URL that it leads to"
        elif status == _GONE:
            hint = ": the receiver is gone for good, so remove the channel or change its URL"
        wait = retry_after(response.headers) if is_retryable(status) else None
        return ChannelRefused(
            f"{self._receiver} answered {status}{hint}", retryable=is_retryable(status), retry_after=wait
        )


def _reason(error: httpx.ProtocolError) -> str:
    if str(error).startswith("Server disconnected"):
        return "it closed the connection before its answer was complete"
    return f"the {'request' if isinstance(error, httpx.LocalProtocolError) else 'answer'} is not valid HTTP"


def body_of(notification: Notification) -> dict[str, JsonValue]:
    """Return the JSON of a notification, with the texts of the job unchanged."""
    return {
        "id": notification.id,
        "kind": notification.kind.value,
        "job": notification.job,
        "at": utc_text(notification.at),
        "channel": notification.channel,
        "execution_id": notification.execution_id,
        "title": notification.title,
        "reason": notification.reason,
        "why": notification.why,
        "url": notification.url,
        "others": notification.others,
        "other_jobs": list(notification.other_jobs),
    }
