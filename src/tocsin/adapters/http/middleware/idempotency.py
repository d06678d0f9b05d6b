"""`Idempotency-Key`: a repeated request gets the same answer and has no second effect.

This holds on every copy of the API.

The first request claims the key in KV `answers`; the others wait for its answer. If the holder of a claim died, another
request takes the claim over once no request of that age can still run. The input carries a name derived from the key
(`request_name`), so that the log or the decision recognizes it. Only answers with an effect are stored: a rejected request
may be sent again, and a request that only reads (`forget_key`) is handled each time. An answer of which a part failed for the moment is not stored either (`do_not_keep`): the request is
handled again, with the jobs as they are then. It finds what it enqueued or retried; what it cancelled is a conflict.

The bucket drops its oldest answers when it is full. A caller with too many stored bytes is answered as usual, and its answers are left
out, so that it does not displace those of others.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from typing_extensions import override

from ....ports import Clock, OutdatedState, Projections
from ....services.jobs import RequestName
from ....subjects import Bucket
from ..api.problems import Problem, invalid, problem_of
from ..auth.security import principal
from .rate_limit import MemoryRateLimit

HEADER: Final = "Idempotency-Key"
ANSWER_LIFETIME: Final = timedelta(hours=24)
MAX_KEY: Final = 256
MAX_ANSWER_BYTES: Final = 700_000
"""Size of a stored answer. A value of the store may have 1 MiB, and JSON grows when it is nested in JSON."""
MAX_CALLER_BYTES: Final = 33_554_432
"""Bytes of answers that a copy of the API stores for a caller at once; as many follow within `ANSWER_LIFETIME`."""
POLL_INTERVAL_S: Final = 0.05
CLAIM_GRACE_S: Final = 5.0
"""Time after the longest request before a claim counts as abandoned."""
_STORED_HEADERS: Final = ("Content-Type", "ETag", "Location", "X-OJS-Batch-Size")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Answer(BaseModel, frozen=True, extra="ignore"):
    """The value of a key: the claim, and then the answer."""

    fingerprint: str
    """The hash of the request's body. Another body with the same key is an error of the client."""
    claimed_at: datetime
    since: datetime | None = None
    """When the key was first claimed; absent: by this claim."""
    is_left_out: bool = False
    """The request is answered, and its answer is not stored: it was too large, one of too many, or only for the moment (`Problem.is_momentary`, `do_not_keep`)."""
    status: int | None = None
    headers: dict[str, str] = {}
    body: str = ""


class Handled(NamedTuple):
    """The answer to a request, and whether it may be stored."""

    response: Response
    is_kept: bool = True
    has_effect: bool = True


class Answers:
    """The stored answers."""

    def __init__(self, projections: Projections, clock: Clock, *, timeout_s: float) -> None:
        """Expect requests to end within `timeout_s` seconds."""
        self._projections = projections
        self._clock = clock
        self._timeout_s = timeout_s + CLAIM_GRACE_S
        self._bytes = MemoryRateLimit(
            clock, rate=MAX_CALLER_BYTES / ANSWER_LIFETIME.total_seconds(), burst=MAX_CALLER_BYTES
        )
        """The bytes that may be stored for each caller."""

    async def once(
        self, account: str, key: str, fingerprint: str, do: Callable[[RequestName], Awaitable[Handled]]
    ) -> Response:
        """Return the answer to a request of an account.

        `do` computes it. Its argument says whether an earlier try may have had an effect, and when the key was first used.
        """
        claim, start = Answer(fingerprint=fingerprint, claimed_at=self._clock.now()), self._clock.monotonic()
        entry: tuple[bytes, int] | None = None
        while True:
            mine, expect, is_free = claim, 0, True  # also if the first request was rejected and released the key
            if entry is not None:
                before, expect = Answer.model_validate_json(entry[0]), entry[1]
                if before.fingerprint != fingerprint:
                    detail = f"`{HEADER}` was used for a request with another body. Send a new key"
                    raise Problem(422, "idempotency-key-reused", detail)
                if before.status is not None:
                    return Response(before.body, before.status, {**before.headers, "Idempotency-Replayed": "true"})
                mine = claim.model_copy(update={"since": before.since or before.claimed_at})
                age = self._clock.now() - before.claimed_at
                is_free = before.is_left_out or age.total_seconds() > self._timeout_s
            if not is_free:
                await asyncio.sleep(POLL_INTERVAL_S)
            elif (revision := await self._put(key, mine, expect)) is not None:
                return await self._answer(account, key, mine, revision, do)
            if self._clock.monotonic() - start >= self._timeout_s:
                detail = "a request with this key is still running. Retry later"
                raise Problem(409, "in-progress", detail, headers={"Retry-After": "1"})
            entry = await self._projections.get(Bucket.ANSWERS, key)

    async def _answer(
        self, account: str, key: str, claim: Answer, revision: int, do: Callable[[RequestName], Awaitable[Handled]]
    ) -> Response:
        is_retried = claim.since is not None
        try:
            response, is_kept, has_effect = await do(RequestName(key, is_retried, claim.since or claim.claimed_at))
        except Exception as error:
            # A taken-over claim is kept, because the earlier try may have had an effect.
            if not is_retried and problem_of(error).status < HTTPStatus.INTERNAL_SERVER_ERROR:  # it excludes an effect
                await self._release(key, revision)
            elif isinstance(error, Problem) and error.is_momentary:
                left_out = claim.model_copy(update={"is_left_out": True})
                await self._put(key, left_out, revision)
            raise
        if not has_effect:
            await self._release(key, revision)
            return response
        headers = {name: response.headers[name] for name in _STORED_HEADERS if name in response.headers}
        body = bytes(response.body)
        update: dict[str, object] = {"is_left_out": True}
        if is_kept and len(body) <= MAX_ANSWER_BYTES and not (await self._bytes.take(account, len(body))).wait:
            update = {"status": response.status_code, "headers": headers, "body": body.decode()}
        await self._put(key, claim.model_copy(update=update), revision)
        return response

    async def _release(self, key: str, revision: int) -> None:
        with suppress(OutdatedState):
            await self._projections.remove(Bucket.ANSWERS, key, expect=revision)

    async def _put(self, key: str, answer: Answer, expect: int) -> int | None:
        try:
            value = answer.model_dump_json().encode()
            return await self._projections.put(
                Bucket.ANSWERS, key, value, expect=expect, ttl=ANSWER_LIFETIME.total_seconds()
            )
        except OutdatedState:
            return None


class IdempotentRoute(APIRoute):
    """A route whose POST requests support the header."""

    async def key_of(self, request: Request) -> tuple[str, object]:
        """Return the field that has the key, and the key; None: the request has none."""
        return HEADER, request.headers.get(HEADER)

    @override
    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def once(request: Request) -> Response:
            name, given = await self.key_of(request)
            if given is None or request.method != "POST":
                return await handle(request)
            if (
                not isinstance(given, str)
                or not 0 < len(given) <= MAX_KEY
                or not (given.isascii() and given.isprintable())
            ):
                raise invalid(name, given, f"must be 1 to {MAX_KEY} printable ASCII characters")
            caller = await principal(request)
            answers = cast("Answers", request.app.state.answers)
            key = _digest(caller.account, request.url.path, request.url.query, given)
            fingerprint = hashlib.sha256(await request.body()).hexdigest()

            async def do(name: RequestName) -> Handled:
                request.state.request_name = name
                response = await handle(request)
                state = request.state
                return Handled(
                    response,
                    is_kept=not getattr(state, "is_for_the_moment", False),
                    has_effect=not getattr(state, "only_reads", False),
                )

            return await answers.once(caller.account, key, fingerprint, do)

        return once


def request_name(request: Request) -> RequestName | None:
    """Return the name derived from the request's key; None without a key."""
    name: RequestName | None = getattr(request.state, "request_name", None)
    return name


def do_not_keep(request: Request) -> None:
    """Do not store the answer to a request: a part of it is momentary."""
    request.state.is_for_the_moment = True


def forget_key(request: Request) -> None:
    """Store nothing about a request: it only reads, and has no effect."""
    request.state.only_reads = True


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.hexdigest()[:32]
