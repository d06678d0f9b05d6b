"""`Idempotency-Key`: the same request again has the same answer, and no second effect, whichever copy it comes to.

The first to ask claims the key in KV `answers`; the others wait for its answer. A claim whose holder died is taken over once
no request of its age can still run; what was asked for carries a name that is made of the key (`asking`), so that
the log, or the decision, knows it again. Only what was done is remembered: a refusal had no effect and may be asked anew.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from ....ports import Clock, OutdatedState, Projections
from ....services.jobs import RequestName
from ....subjects import Bucket
from ..api.problems import Problem, invalid, problem_of
from ..auth.security import principal

HEADER: Final = "Idempotency-Key"
LIFE: Final = timedelta(hours=24)
"""For so long an answer is remembered."""
MAX_KEY: Final = 255
MAX_ANSWER: Final = 700_000
"""Bytes of an answer that is remembered: a value of the store holds a mebibyte, and JSON within JSON grows."""
POLL: Final = 0.05
GRACE: Final = 5.0
"""Seconds beyond the longest request after which a claim is an orphan's."""
_REMEMBERED: Final = ("Content-Type", "ETag", "Location")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Answer(BaseModel):
    """What is kept under a key: who claimed it when, and, once it is there, the answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    fingerprint: str
    """Of the request's body: another body under the same key is a mistake."""
    claimed_at: datetime
    status: int | None = None
    headers: dict[str, str] = {}
    body: str = ""


class Answers:
    """The answers that are remembered."""

    def __init__(self, projections: Projections, clock: Clock, *, patience: float) -> None:
        """`patience`: seconds that a request can last at most."""
        self._projections = projections
        self._clock = clock
        self._patience = patience + GRACE

    async def once(self, key: str, fingerprint: str, do: Callable[[bool], Awaitable[Response]]) -> Response:
        """The answer to a request. `do` makes it, and is told whether somebody may have tried before.

        Raises:
            Problem: another request bears this key, or this one is still being worked on.
        """
        claim = Answer(fingerprint=fingerprint, claimed_at=self._clock.now())
        value = claim.model_dump_json().encode()
        revision = await self._put(key, value, 0)
        if revision is not None:
            return await self._answer(key, claim, revision, do, retried=False)
        begin = self._clock.monotonic()
        while self._clock.monotonic() - begin < self._patience:
            found = await self._projections.get(Bucket.ANSWERS, key)
            if found is None:  # it was refused, and let go
                revision = await self._put(key, value, 0)
                if revision is not None:
                    return await self._answer(key, claim, revision, do, retried=False)
                continue
            known = Answer.model_validate_json(found[0])
            if known.fingerprint != fingerprint:
                raise Problem(
                    422,
                    "idempotency-key-reused",
                    f"`{HEADER}` was used for a request with another body: take a new one",
                )
            if known.status is not None:
                return Response(known.body, known.status, {**known.headers, "Idempotency-Replayed": "true"})
            if (self._clock.now() - known.claimed_at).total_seconds() > self._patience:
                revision = await self._put(key, value, found[1])
                if revision is not None:
                    return await self._answer(key, claim, revision, do, retried=True)
                continue
            await asyncio.sleep(POLL)
        raise Problem(
            409, "in-progress", "a request with this key is still being worked on", headers={"Retry-After": "1"}
        )

    async def _answer(
        self, key: str, claim: Answer, revision: int, do: Callable[[bool], Awaitable[Response]], *, retried: bool
    ) -> Response:
        try:
            response = await do(retried)
        except Exception as error:
            # What is refused now may have been done before: a claim that was taken over is kept.
            if not retried and is_without_effect(error):
                with suppress(OutdatedState):
                    await self._projections.remove(Bucket.ANSWERS, key, expect=revision)
            raise
        headers = {name: response.headers[name] for name in _REMEMBERED if name in response.headers}
        body = bytes(response.body)
        if len(body) <= MAX_ANSWER:
            update = {"status": response.status_code, "headers": headers, "body": body.decode()}
            kept = claim.model_copy(update=update).model_dump_json().encode()
            await self._put(key, kept, revision)
        return response

    async def _put(self, key: str, value: bytes, expect: int) -> int | None:
        try:
            return await self._projections.put(Bucket.ANSWERS, key, value, expect=expect, ttl=LIFE.total_seconds())
        except OutdatedState:
            return None


class IdempotentRoute(APIRoute):
    """A route whose POSTs heed the header."""

    @override
    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def once(request: Request) -> Response:
            given = request.headers.get(HEADER)
            if given is None or request.method != "POST":
                return await handle(request)
            if not 0 < len(given) <= MAX_KEY or not given.isascii() or not given.isprintable():
                raise invalid(HEADER, given, f"must be 1 to {MAX_KEY} printable ASCII characters")
            caller = await principal(request)
            answers = cast("Answers", request.app.state.answers)
            key = _digest(caller.identity, request.url.path, request.url.query, given)
            fingerprint = hashlib.sha256(await request.body()).hexdigest()

            async def do(retried: bool) -> Response:  # noqa: FBT001 - a callback's one argument
                request.state.asking = RequestName(key, is_retried=retried)
                return await handle(request)

            return await answers.once(key, fingerprint, do)

        return once


def asking(request: Request) -> RequestName | None:
    """What the request at hand is called; None: it bears no key."""
    found: RequestName | None = getattr(request.state, "asking", None)
    return found


def is_without_effect(error: Exception) -> bool:
    """Whether an exception says that nothing was done: then the key may be used again."""
    return problem_of(error).status < 500  # noqa: PLR2004 - the first of the server's own failures


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.hexdigest()[:32]
