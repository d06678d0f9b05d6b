"""Who somebody is by their token: one of the installation's own, or one of the identity provider's.

JSON Web Tokens of an identity provider, verified against the keys that it publishes (RFC 7517, 7519, 8725).

The algorithms are ours to say and asymmetric: what a token's header names is only ever compared with them. The keys are
fetched when first needed, again when they are `KEYS_TTL` old, and when a token names one that is not among them, though
no more often than every `LEAST_PAUSE` seconds, or anybody could have us fetch at will. While the provider does not answer
the keys at hand serve on, up to `KEYS_LIFE`.

"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import httpx
import jwt
import structlog

from ....domain.access import Role, roles_of
from ....domain.errors import TocsinError
from ....ports import Clock
from ....settings import Auth
from .tokens import PREFIX, InvalidToken, Tokens

KEYS_TTL: Final = 300.0
KEYS_LIFE: Final = 3_600.0
LEAST_PAUSE: Final = 10.0
MAX_ANSWER: Final = 1_048_576
"""Bytes of a key set."""

_log = structlog.get_logger("tocsin.http")


class ProviderUnavailable(TocsinError):
    """The keys cannot be had, so nobody can be told from anybody."""

    code = "identity-provider-unavailable"


class IdentityProvider:
    """Verifies the tokens of one issuer."""

    def __init__(self, auth: Auth, http: httpx.AsyncClient, clock: Clock) -> None:
        """`auth` names at least `iam_url` or `jwks_url`."""
        self._auth = auth
        self._http = http
        self._clock = clock
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched: float | None = None
        self._tried: float | None = None
        self._fetching = asyncio.Lock()

    async def verify(self, token: str) -> tuple[str, frozenset[Role]]:
        """The identity and the roles that a token stands for.

        Raises:
            InvalidToken: it is not this issuer's, not for us, not valid now, or signed otherwise than it must be.
            ProviderUnavailable: the keys cannot be had.
        """
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in self._auth.algorithms:
                raise InvalidToken(f"its algorithm is none of {', '.join(self._auth.algorithms)}")
            claims = jwt.decode(
                token,
                await self._key(header.get("kid")),
                algorithms=list(self._auth.algorithms),
                audience=self._auth.audience,
                issuer=self._auth.expected_issuer,
                leeway=self._auth.leeway,
                options={"require": ["exp", "iss", "aud", self._auth.identity_claim]},
            )
        except jwt.PyJWTError as error:
            raise InvalidToken(_REASONS.get(type(error), "it cannot be verified")) from error
        identity = claims[self._auth.identity_claim]
        if not isinstance(identity, str) or not identity:
            raise InvalidToken(f"its `{self._auth.identity_claim}` names nobody")
        return identity, roles_of(_listed(_at(claims, self._auth.roles_claim)))

    async def _key(self, kid: object) -> jwt.PyJWK:
        name = kid if isinstance(kid, str) else None
        if self._is_older_than(KEYS_TTL) or self._find(name) is None:
            await self._fetch(name)
        if not self._keys or self._is_older_than(KEYS_LIFE):
            raise ProviderUnavailable("the keys of the identity provider cannot be had")
        found = self._find(name)
        if found is None:
            raise InvalidToken("it is signed with a key that the identity provider does not publish")
        return found

    def _find(self, name: str | None) -> jwt.PyJWK | None:
        if name is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name) if name is not None else None

    def _is_older_than(self, seconds: float) -> bool:
        return self._fetched is None or self._clock.monotonic() - self._fetched >= seconds

    async def _fetch(self, name: str | None) -> None:
        async with self._fetching:
            if not self._is_older_than(KEYS_TTL) and self._find(name) is not None:
                return  # another request fetched them meanwhile
            now = self._clock.monotonic()
            if self._tried is not None and now - self._tried < LEAST_PAUSE:
                return
            self._tried = now
            try:
                keys = jwt.PyJWKSet.from_dict(await self._get(await self._url())).keys
            except (httpx.HTTPError, jwt.PyJWTError, ValueError, KeyError, TypeError) as error:
                _log.warning("no keys from the identity provider", action="no-keys", error=repr(error))
                return
            self._keys = {key.key_id: key for key in keys if key.public_key_use in {None, "sig"}}
            self._fetched = now

    async def _url(self) -> str:
        if self._auth.jwks_url is not None:
            return self._auth.jwks_url
        issuer = (self._auth.iam_url or "").rstrip("/")
        discovered = (await self._get(f"{issuer}/.well-known/openid-configuration"))["jwks_uri"]
        return str(discovered)

    async def _get(self, url: str) -> dict[str, Any]:
        answer = await self._http.get(url, headers={"Accept": "application/json"})
        answer.raise_for_status()
        if len(answer.content) > MAX_ANSWER:
            raise ValueError(f"{url}: more than {MAX_ANSWER} bytes")
        found = answer.json()
        if not isinstance(found, dict):
            raise TypeError(f"{url}: no JSON object")
        return found


_REASONS: Final[Mapping[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.InvalidIssuerError: "it is of another issuer",
    jwt.InvalidSignatureError: "its signature is not right",
    jwt.MissingRequiredClaimError: "a claim is missing: it needs `exp`, `iss`, `aud` and whom it is about",
}


def _at(claims: Mapping[str, Any], path: str) -> object:
    """A claim by its path: as it is called, or dotted where it lies in others."""
    if path in claims:
        return claims[path]
    found: object = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _listed(claim: object) -> list[object]:
    """Roles are a list, or one text with spaces between them."""
    if isinstance(claim, str):
        return [*claim.split()]
    return list(claim) if isinstance(claim, list) else []


LOOKED: Final = 5.0
"""Seconds until it is asked again whether there is a token by now."""


class Authentication:
    """Implements `security.Authenticator`.

    A token is asked for where an identity provider is configured, and as soon as the installation has a token of its own; from
    then on for as long as this copy runs, so that revoking the last token opens nothing.
    """

    def __init__(self, tokens: Tokens, provider: IdentityProvider | None, clock: Clock) -> None:
        """Without a provider only the installation's own tokens are known."""
        self._tokens = tokens
        self._provider = provider
        self._clock = clock
        self._required = provider is not None
        self._looked: float | None = None

    async def is_required(self) -> bool:
        """Whether anybody is asked for a token."""
        now = self._clock.monotonic()
        if not self._required and (self._looked is None or now - self._looked >= LOOKED):
            self._looked = now
            self._required = bool(await self._tokens.list())
        return self._required

    async def authenticate(self, token: str) -> tuple[str, frozenset[Role]]:
        """The identity behind a token, and its roles.

        Raises:
            InvalidToken: it is not accepted.
            ProviderUnavailable: whether it is cannot be known now.
        """
        if token.startswith(PREFIX):
            known = await self._tokens.verify(token)
            return known.identity, known.roles
        if self._provider is None:
            raise InvalidToken("this token is not known here, or was revoked")
        return await self._provider.verify(token)
