"""Tokens of the installation itself, for those without an identity provider: shown once, kept as a hash (KV `tokens`).

A token is `tcsn_<id>_<secret>`. The secret has 256 bits from the system, so that a plain SHA-256 is as good as any slower
hash: there is nothing to guess. What was revoked, or is over, is refused within `CACHED` seconds by every copy.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from pydantic import BaseModel, ConfigDict

from ....domain.access import Role
from ....domain.errors import TocsinError
from ....domain.events import Actor
from ....ports import Clock, Projections
from ....subjects import Bucket

PREFIX: Final = "tcsn_"
CACHED: Final = 5.0
"""Seconds for which what the bucket says is believed."""
_CAPACITY: Final = 10_000
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32


class InvalidToken(TocsinError):
    """Somebody's token is not accepted; the text says why, and nothing of the token."""

    code = "invalid-token"


class StoredToken(BaseModel):
    """What is kept of a token."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    identity: str
    roles: frozenset[Role]
    hash: str
    created_at: datetime
    created_by: Actor | None = None
    expires_at: datetime | None = None

    def is_over(self, now: datetime) -> bool:
        """Whether its time has passed."""
        return self.expires_at is not None and self.expires_at <= now


class Tokens:
    """The tokens of an installation."""

    def __init__(self, projections: Projections, clock: Clock) -> None:
        """The bucket exists: `tocsin init` made it."""
        self._projections = projections
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, StoredToken | None]] = OrderedDict()

    async def create(
        self, identity: str, roles: Collection[Role], *, lifetime: timedelta | None = None, by: Actor | None = None
    ) -> tuple[str, StoredToken]:
        """A new token, which nobody can be shown again, and what is kept of it."""
        token_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        now = self._clock.now()
        stored = StoredToken(
            id=token_id,
            identity=identity,
            roles=frozenset(roles),
            hash=_hash(secret),
            created_at=now,
            created_by=by,
            expires_at=now + lifetime if lifetime else None,
        )
        await self._projections.put(Bucket.TOKENS, token_id, stored.model_dump_json().encode(), expect=0)
        return f"{PREFIX}{token_id}_{secret}", stored

    async def list(self) -> list[StoredToken]:
        """What is kept of each token, the oldest first."""
        entries = (await self._projections.entries(Bucket.TOKENS)).values()
        return sorted((StoredToken.model_validate_json(value) for value in entries), key=lambda token: token.created_at)

    async def revoke(self, token_id: str) -> bool:
        """Accept a token no more; whether there was one."""
        if not is_id(token_id) or await self._projections.get(Bucket.TOKENS, token_id) is None:
            return False
        await self._projections.remove(Bucket.TOKENS, token_id)
        return True

    async def verify(self, token: str) -> StoredToken:
        """What a token stands for.

        Raises:
            InvalidToken: it is none of this installation's, was revoked, or is over.
        """
        token_id, _, secret = token.removeprefix(PREFIX).partition("_")
        stored = await self._stored(token_id) if is_id(token_id) else None
        # Compared in any case, so that the time it takes tells nothing of which ids there are.
        matches = hmac.compare_digest(_hash(secret), stored.hash if stored else _hash(""))
        if stored is None or not matches:
            raise InvalidToken("this token is not known here, or was revoked")
        if stored.is_over(self._clock.now()):
            raise InvalidToken("this token has expired")
        return stored

    async def _stored(self, token_id: str) -> StoredToken | None:
        now = self._clock.monotonic()
        read_at, stored = self._known.get(token_id, (-CACHED, None))
        if now - read_at < CACHED:
            return stored
        found = await self._projections.get(Bucket.TOKENS, token_id)
        stored = StoredToken.model_validate_json(found[0]) if found else None
        self._known[token_id] = now, stored
        if len(self._known) > _CAPACITY:
            self._known.popitem(last=False)
        return stored


def is_id(text: str) -> bool:
    """Whether a text can be the id of a token: only such a one is made a key."""
    return len(text) == 2 * _ID_BYTES and all(c in "0123456789abcdef" for c in text)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
