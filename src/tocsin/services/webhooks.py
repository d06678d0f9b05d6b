"""Requests to webhooks: their jobs, their signatures, and their place in the queue.

A request to an unknown path and a request with a wrong signature get the same answer, and cost the same: the paths, their jobs and
their secrets are read ahead, at most once a second.
"""

import asyncio
import re
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Final

from .. import telemetry
from ..domain import cel, ids
from ..domain.definition.webhook_fields import SignatureScheme, is_signed, key_of, opened_secret
from ..domain.errors import TocsinError
from ..domain.event_trigger import UnreadableEvent, read_event
from ..domain.secret_reference import SecretReferenceError
from ..ports import WEBHOOK_DELIVERY, WEBHOOK_PATH, WEBHOOK_REGISTRATION, Clock, LogUnavailable, WebhookQueue
from .jobs.job import Job
from .machine_secrets import read_secret

REFRESH_S: Final = 1.0
"""The time after a read at which the paths are read again."""
MAX_BODY: Final = cel.MAX_EVENT_BYTES
"""Bytes of a request: expressions read no larger event."""
MAX_HEADERS: Final = 64
"""Headers of a request that expressions see."""
MAX_DELIVERY: Final = 255
"""Characters of the identity of a request."""
_HIDDEN: Final = frozenset({"authorization", "cookie", "proxy-authorization", "connection", "content-length", "host"})
"""Headers that expressions do not see."""
_RESERVED: Final = ("nats-", "tocsin-")
_NAME: Final = re.compile("[a-z0-9-]{1,100}")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")

_log = telemetry.get_logger("tocsin.http")


class WebhookRefused(TocsinError):
    """No webhook accepts a request: its path is unknown, or its signature is wrong."""

    code = "webhook-refused"


class WrongDelivery(TocsinError):
    """A signed request cannot be an event. Its sender must change it."""

    code = "bad-request"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A path in force."""

    path: str
    job: str
    durable: str
    scheme: SignatureScheme
    has_key: bool
    key: bytes
    registration: str
    """The time at which its job was registered first. A job that is registered again has another."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request that a webhook accepts."""

    webhook: Webhook
    body: bytes
    headers: Mapping[str, str]
    message_id: str
    """The id that its copies share."""


_NO_WEBHOOK: Final = Webhook("", "", "", SignatureScheme(), has_key=False, key=secrets.token_bytes(32), registration="")


class Webhooks:
    """Receives requests to webhooks."""

    def __init__(
        self,
        jobs: Callable[[], Awaitable[Sequence[Job]]],
        opened: Mapping[str, Sequence[str]],
        queue: WebhookQueue,
        clock: Clock,
        key: bytes,
    ) -> None:
        """`opened`: the paths of each secret that the settings open. `key`: that of the installation."""
        self._jobs = jobs
        self._opened = opened
        self._queue = queue
        self._clock = clock
        self._key = key
        self._webhooks: Mapping[str, Webhook] = {}
        self._read_at: float | None = None
        self._failure: LogUnavailable | None = None
        """The error of the last read; None: it succeeded."""
        self._turn = asyncio.Lock()
        self._reported: frozenset[str] = frozenset()

    async def accept(self, path: str, headers: Mapping[str, str], body: bytes) -> SignedRequest:
        """Verify a request. Names of headers are in lower case.

        Raises:
            WebhookRefused: the path is unknown, or the signature is wrong.
            WrongDelivery: the request has no identity, or its body is no event.
        """
        webhook = (await self._current()).get(path, _NO_WEBHOOK)
        now = self._clock.now()
        is_accepted = is_signed(webhook.scheme, webhook.key, headers, body, now)
        if webhook is _NO_WEBHOOK or not is_accepted:
            raise WebhookRefused(
                "no webhook accepts this request: its path is unknown, or its signature is wrong. Compare the path and the secret"
            )
        digest = sha256(body).hexdigest()
        delivery = _delivery(webhook, headers, digest)
        shown = _shown(headers, webhook.scheme)
        try:
            read_event(body, path, shown, now)
        except UnreadableEvent as error:
            raise WrongDelivery(str(error)) from None
        message_id = ids.keyed_digest(self._key, "webhook", webhook.durable, webhook.registration, delivery, digest)
        stored = {WEBHOOK_PATH: path, WEBHOOK_DELIVERY: delivery, WEBHOOK_REGISTRATION: webhook.registration}
        return SignedRequest(webhook, body, {**shown, **stored}, message_id)

    async def store(self, request: SignedRequest) -> None:
        """Store a request until the event listener has handled it.

        Raises:
            RequestRefused: too many requests wait for the event listener.
        """
        await self._queue.store(request.webhook.durable, request.body, request.headers, message_id=request.message_id)

    async def _current(self) -> Mapping[str, Webhook]:
        """Return the webhooks in force, which are read at most once a second.

        A failed read counts for a second too. Otherwise, waiting requests would repeat it one after another.
        """
        if not self._opened:
            return {}
        async with self._turn:
            if self._read_at is None or self._clock.monotonic() - self._read_at >= REFRESH_S:
                try:
                    self._read(await self._jobs())
                    self._failure = None
                except LogUnavailable as error:
                    self._failure = error
                self._read_at = self._clock.monotonic()
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            return self._webhooks

    def _read(self, jobs: Sequence[Job]) -> None:
        found: dict[str, list[Webhook]] = defaultdict(list)
        problems: dict[str, str] = {}
        secret = cache(read_secret)  # many jobs may share a file
        for job in jobs:
            for trigger in job.definition.triggers:
                path = trigger.webhook
                if path is None:
                    continue
                name = opened_secret(path, trigger.secret, self._opened)
                if name is None:
                    problems[path] = "the settings do not open exactly one secret for it"
                    continue
                try:
                    key = key_of(secret(name) or "", trigger.signature)
                except (SecretReferenceError, ValueError) as error:
                    problems[path] = f"the secret `{name}`: {error}"
                    continue
                durable = ids.event_durable(job.name, trigger.source)
                registration = job.created_at.isoformat()
                found[path].append(
                    Webhook(path, job.name, durable, trigger.scheme, trigger.key is not None, key, registration)
                )
        problems |= {path: "several jobs have it" for path, webhooks in found.items() if len(webhooks) > 1}
        in_force = {job.name for job in jobs if job.definition.enabled and not job.ledger.is_paused}
        self._webhooks = {
            path: webhook for path, (webhook, *others) in found.items() if not others and webhook.job in in_force
        }
        for path in sorted(problems.keys() - self._reported):
            _log.error("webhook left out", action="webhook-left-out", path=path, reason=problems[path])
        self._reported = frozenset(problems)


def _delivery(webhook: Webhook, headers: Mapping[str, str], digest: str) -> str:
    name = webhook.scheme.delivery
    delivery = "" if name is None else headers.get(name, "")
    if 0 < len(delivery) <= MAX_DELIVERY and _VALUE.fullmatch(delivery):
        return delivery
    if not webhook.has_key:
        raise WrongDelivery(
            f"the header `{name}` must have the identity of the request, of 1 to {MAX_DELIVERY} printable ASCII characters. Send it, or give "
            "the trigger a `key`"
        )
    return digest


def _shown(headers: Mapping[str, str], scheme: SignatureScheme) -> dict[str, str]:
    """Return the headers that expressions see.

    They have no secrets, and no names of the server.
    """
    shown = {
        name: value
        for name, value in headers.items()
        if name not in _HIDDEN
        and name != scheme.header
        and not name.startswith(_RESERVED)
        and _NAME.fullmatch(name)
        and _VALUE.fullmatch(value)
    }
    return dict([*shown.items()][:MAX_HEADERS])
