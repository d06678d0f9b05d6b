"""Tokens of an installation without an identity provider, stored as hashes (KV `tokens`).

A token is `tcsn_<id>_<secret>`. It is shown once. The secret has 256 random bits, so SHA-256 is as safe as a slower hash: it cannot be guessed.
Every copy rejects a revoked or expired token within `CACHE_TTL_S` seconds.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import BaseModel, PlainSerializer

from ....domain.access import NO_TASKS, Binding, Role
from ....domain.errors import TocsinError
from ....domain.events import Actor
from ....ports import Clock, Projections
from ....subjects import Bucket

PREFIX: Final = "tcsn_"
CACHE_TTL_S: Final = 5.0
"""How long an entry read from the bucket stays valid."""
_CAPACITY: Final = 10_000
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32


class InvalidToken(TocsinError):
    """A token is not accepted; the text contains no part of it."""

    code = "invalid-token"


class Token(
    BaseModel,
    frozen=True,
    extra="ignore",
    use_attribute_docstrings=True,
    json_schema_serialization_defaults_required=True,
):
    """A token without its secret."""

    id: str
    identity: str
    roles: Annotated[frozenset[Role], PlainSerializer(sorted, return_type=list[Role])]
    queues: tuple[str, ...] = ()
    """The queues of a worker."""
    functions: tuple[str, ...] = ("*",)
    """The functions of a worker."""
    namespaces: tuple[str, ...] | None = None
    """The namespaces to which the token is bound; null: the whole installation."""
    created_at: datetime
    created_by: Actor | None = None
    expires_at: datetime | None = None

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class StoredToken(Token):
    """A token with the hash of its secret."""

    hash: str


class Tokens:
    """The tokens of an installation."""

    def __init__(self, projections: Projections, clock: Clock) -> None:
        self._projections = projections
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, StoredToken | None]] = OrderedDict()

    async def create(
        self,
        identity: str,
        roles: Collection[Role],
        *,
        binding: Binding = NO_TASKS,
        namespaces: Collection[str] | None = None,
        lifetime: timedelta | None = None,
        by: Actor | None = None,
    ) -> tuple[str, Token]:
        """Create a token. Return it, which cannot be shown again, and its stored part.

        `binding` limits the role of a worker, and `namespaces` all roles; None: the whole installation.
        """
        token_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        now = self._clock.now()
        stored = StoredToken(
            id=token_id,
            identity=identity,
            roles=frozenset(roles),
            queues=binding.queues,
            functions=binding.functions,
            namespaces=None if namespaces is None else tuple(sorted(set(namespaces))),
            hash=hash_of(secret),
            created_at=now,
            created_by=by,
            expires_at=now + lifetime if lifetime else None,
        )
        await self._projections.put(Bucket.TOKENS, token_id, stored.model_dump_json().encode(), expect=0)
        return f"{PREFIX}{token_id}_{secret}", stored

    async def list(self) -> Sequence[Token]:
        entries = (await self._projections.entries(Bucket.TOKENS)).values()
        return sorted((StoredToken.model_validate_json(value) for value in entries), key=lambda token: token.created_at)

    async def revoke(self, token_id: str) -> bool:
        """Revoke a token. Return whether it existed."""
        if not is_id(token_id) or await self._projections.get(Bucket.TOKENS, token_id) is None:
            return False
        await self._projections.remove(Bucket.TOKENS, token_id)
        return True

    async def verify(self, token: str) -> StoredToken:
        """Return the stored part of a valid token, or raise `InvalidToken`."""
        token_id, _, secret = token.removeprefix(PREFIX).partition("_")
        stored = await self._stored(token_id) if is_id(token_id) else None
        # Compared even if the id is unknown, so that the response time does not reveal which ids exist.
        matches = hmac.compare_digest(hash_of(secret), stored.hash if stored else hash_of(""))
        if stored is None or not matches:
            raise InvalidToken("the token is unknown or revoked")
        if stored.is_expired(self._clock.now()):
            raise InvalidToken("the token has expired")
        return stored

    async def _stored(self, token_id: str) -> StoredToken | None:
        now = self._clock.monotonic()
        read_at, stored = self._known.get(token_id, (-CACHE_TTL_S, None))
        if now - read_at < CACHE_TTL_S:
            return stored
        entry = await self._projections.get(Bucket.TOKENS, token_id)
        stored = StoredToken.model_validate_json(entry[0]) if entry else None
        self._known[token_id] = now, stored
        if len(self._known) > _CAPACITY:
            self._known.popitem(last=False)
        return stored


def is_id(text: str) -> bool:
    """Check that a text has the form of a token's id."""
    return len(text) == 2 * _ID_BYTES and all(c in "0123456789abcdef" for c in text)


def hash_of(secret: str) -> str:
    """Return the hash of a secret that may have any characters."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
