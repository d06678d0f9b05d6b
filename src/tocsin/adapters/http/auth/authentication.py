"""Authenticate a caller by a token of the installation or of an identity provider.

JSON Web Tokens of an identity provider are verified with the keys that it publishes (RFC 7517, 7519, 8725). The settings
name the accepted algorithms, which are asymmetric; the algorithm in a token's header must be among them. The keys are
fetched at first use, when they are `KEYS_TTL_S` old, and when a token names an unknown key. `FETCH_PAUSE_S` separates
fetches, so that a caller with invented key names cannot cause requests to the provider. While the provider does not answer,
the known keys stay in use for `KEYS_MAX_AGE_S`. One request at a time waits for newer keys, and the others use the known keys.
"""

import asyncio
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

import httpx
import jwt
from pydantic import SecretStr

from .... import telemetry
from ....domain.access import Binding, Principal, Role, roles_of
from ....domain.definition import shorten
from ....domain.errors import TocsinError
from ....ports import Clock
from ....settings import Auth
from .tokens import PREFIX, InvalidToken, Tokens, hash_of

MAX_RESPONSE_BYTES: Final = 1_048_576
MAX_SECONDS: Final = 5.0
"""Time for a whole answer. The timeouts of the client limit only each pause within it."""


_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}
"""Uncompressed, so that a few received bytes cannot expand to many."""


class ProviderUnavailable(TocsinError):
    """The identity provider's keys cannot be fetched, so no token can be verified."""

    code = "identity-provider-unavailable"


async def read_json(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    data: Mapping[str, str] | None = None,
    auth: httpx.BasicAuth | None = None,
) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON object of an answer.

    Raises:
        ProviderUnavailable: the provider sends no such object within `MAX_SECONDS` and `MAX_RESPONSE_BYTES`.
    """
    name = shorten(url, 300)
    try:
        async with (
            asyncio.timeout(MAX_SECONDS),
            http.stream(method, url, headers=_HEADERS, data=data, auth=auth) as answer,
        ):
            body = bytearray()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    break
        document = json.loads(body) if len(body) <= MAX_RESPONSE_BYTES else None
    except TimeoutError as error:
        raise ProviderUnavailable(f"{name}: no response within {MAX_SECONDS:g} seconds") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise ProviderUnavailable(f"{name}: {error!r}") from error
    if not isinstance(document, dict):
        raise ProviderUnavailable(f"{name}: the response is no JSON object of at most {MAX_RESPONSE_BYTES} bytes")
    return answer.status_code, document


KEYS_TTL_S: Final = 300.0
KEYS_MAX_AGE_S: Final = 3_600.0
FETCH_PAUSE_S: Final = 10.0
MAX_IDENTITY: Final = 255
"""Characters of an identity, which each of its decisions records."""
MAX_TIME: Final = 253_402_300_799
"""The last second of the year 9999, as a token writes times (RFC 7519, NumericDate)."""

_log = telemetry.get_logger("tocsin.http")


class IdentityProvider:
    """Verify the tokens of an issuer."""

    def __init__(self, auth: Auth, http: httpx.AsyncClient, clock: Clock) -> None:
        """Use `auth`, which has `iam_url` or `jwks_url`."""
        self._auth = auth
        self._http = http
        self._clock = clock
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetching = asyncio.Lock()

    async def verify(self, token: str) -> Principal:
        """Return the identity of a token with its permissions; errors as `claims`."""
        claims = await self.claims(token, self._auth.audience, self._auth.identity_claim)
        identity = claims[self._auth.identity_claim]
        if not isinstance(identity, str) or not 0 < len(identity) <= MAX_IDENTITY or not identity.isprintable():
            right = f"printable text of 1 to {MAX_IDENTITY} characters"
            raise InvalidToken(f"its claim `{self._auth.identity_claim}` is no {right}")
        return Principal(
            identity,
            roles_of(_listed(_at(claims, self._auth.roles_claim))),
            binding=self._binding(claims),
            namespaces=self._namespaces(claims),
        )

    async def claims(self, token: str, audience: str, required: str) -> Mapping[str, Any]:
        """Return the claims of a token for an audience, with a required claim.

        Raises:
            InvalidToken: the issuer, the audience, the validity period or the signature is wrong.
            ProviderUnavailable: the keys cannot be fetched.
        """
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in self._auth.algorithms:
                raise InvalidToken(f"its algorithm is not among {', '.join(self._auth.algorithms)}")
            claims: Mapping[str, Any] = jwt.decode(
                token,
                await self._key(header.get("kid")),
                algorithms=list(self._auth.algorithms),
                audience=audience,
                issuer=self._auth.expected_issuer,
                leeway=self._auth.leeway,
                options={"require": ["exp", "iss", "aud", required]},
            )
        except (jwt.PyJWTError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidToken(_REASONS.get(type(error), "it cannot be verified")) from error
        for name in ("exp", "nbf", "iat"):  # the library reads texts too
            time = claims.get(name, 0)
            if not isinstance(time, int | float) or isinstance(time, bool) or not 0 <= time <= MAX_TIME:
                raise InvalidToken(f"its claim `{name}` is no number of seconds from 0 to {MAX_TIME:,}")
        return claims

    def _binding(self, claims: Mapping[str, Any]) -> Binding:
        """Return the tasks of a worker. Without a claim of functions, it may run all."""
        queues, functions = _at(claims, self._auth.queues_claim), _at(claims, self._auth.functions_claim)
        return Binding(_texts(queues), ("*",) if functions is None or functions is _ABSENT else _texts(functions))

    def _namespaces(self, claims: Mapping[str, Any]) -> frozenset[str] | None:
        """Return the namespaces of an identity; None: the token has no such claim.

        A claim in another form, such as null, binds the identity to no namespace, so that it sees nothing.
        """
        claim = _at(claims, self._auth.namespaces_claim)
        return None if claim is _ABSENT else frozenset(_texts(claim))

    async def _key(self, kid: object) -> jwt.PyJWK:
        name = kid if isinstance(kid, str) else None
        must_wait = self._find(name) is None or self._is_older_than(KEYS_MAX_AGE_S)
        if must_wait or (self._is_older_than(KEYS_TTL_S) and not self._fetching.locked()):
            await self._fetch(name)
        if not self._keys or self._is_older_than(KEYS_MAX_AGE_S):
            raise ProviderUnavailable("the keys of the identity provider cannot be fetched")
        key = self._find(name)
        if key is None:
            raise InvalidToken("it is signed with a key that the identity provider does not publish")
        return key

    def _find(self, name: str | None) -> jwt.PyJWK | None:
        if name is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name) if name is not None else None

    def _is_older_than(self, seconds: float) -> bool:
        return self._fetched_at is None or self._clock.monotonic() - self._fetched_at >= seconds

    async def _fetch(self, name: str | None) -> None:
        async with self._fetching:
            if not self._is_older_than(KEYS_TTL_S) and self._find(name) is not None:
                return  # another request fetched the keys meanwhile
            now = self._clock.monotonic()
            if self._tried_at is not None and now - self._tried_at < FETCH_PAUSE_S:
                return
            self._tried_at = now
            try:
                url = self._auth.jwks_url
                url = str((await self.configuration())["jwks_uri"]) if url is None else url
                published = jwt.PyJWKSet.from_dict(await self._get(url)).keys
                keys = {
                    key.key_id: key
                    for key in published
                    if key.public_key_use in {None, "sig"}
                    and key.algorithm_name in self._auth.algorithms  # a symmetric key could also make tokens
                }
            except (ProviderUnavailable, jwt.PyJWTError, ValueError, KeyError, TypeError, RecursionError) as error:
                _log.warning("fetch of the identity provider's keys failed", action="no-keys", error=repr(error))
                return
            self._keys = keys
            self._fetched_at = now

    async def configuration(self) -> dict[str, Any]:
        """Read the OpenID configuration of the provider, or raise `ProviderUnavailable`."""
        issuer = (self._auth.iam_url or "").rstrip("/")
        return await self._get(f"{issuer}/.well-known/openid-configuration")

    async def _get(self, url: str) -> dict[str, Any]:
        status, document = await read_json(self._http, "GET", url)
        if status != httpx.codes.OK:
            raise ProviderUnavailable(f"{url}: the response has the status {status}")
        return document


_REASONS: Final[Mapping[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.InvalidIssuerError: "it comes from another issuer",
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.MissingRequiredClaimError: "a claim is missing: `exp`, `iss`, `aud` and the identity are required",
}
_ABSENT: Final = object()


def _at(claims: Mapping[str, Any], path: str) -> object:
    """Return a claim by its name, or by its dotted path if it is nested.

    `_ABSENT`: the token has no such claim. A null, or another value where a part of the path should be, is a claim.
    """
    if path in claims:
        return claims[path]
    claim: object = claims
    for part in path.split("."):
        if not isinstance(claim, Mapping):
            return None
        claim = claim.get(part, _ABSENT)
        if claim is _ABSENT:
            break
    return claim


def _listed(claim: object) -> list[object]:
    if isinstance(claim, str):
        return [*claim.split()]
    return list(claim) if isinstance(claim, list) else []


def _texts(claim: object) -> tuple[str, ...]:
    return tuple(item for item in _listed(claim) if isinstance(item, str))


TOKEN_CHECK_S: Final = 5.0
"""Interval of the check whether the first token was created."""
ADMIN_IDENTITY: Final = "admin-token"


class Authentication:
    """Authenticates callers by tokens of the installation, of the provider or of the settings.

    Requests need a token if the settings have an identity provider or the token of an administrator, or once the installation
    has a token. The requirement then holds as long as this copy runs, so that revoking the last token does not open the API.
    """

    def __init__(
        self, tokens: Tokens, provider: IdentityProvider | None, clock: Clock, *, admin_token: SecretStr | None = None
    ) -> None:
        """Accept only the installation's tokens, and `admin_token`, if `provider` is None."""
        self._tokens = tokens
        self._provider = provider
        self._clock = clock
        self._admin_hash = None if admin_token is None else hash_of(admin_token.get_secret_value())
        self._required = provider is not None or admin_token is not None
        self._checked_at: float | None = None

    async def is_required(self) -> bool:
        """Report whether requests need a token."""
        now = self._clock.monotonic()
        if not self._required and (self._checked_at is None or now - self._checked_at >= TOKEN_CHECK_S):
            self._required = bool(await self._tokens.list())
            self._checked_at = now  # not before: until the tokens were read, the requirement is unknown
        return self._required

    async def authenticate(self, token: str) -> Principal:
        """Return the identity of a token with its permissions.

        Raises:
            InvalidToken: the token is not accepted.
            ProviderUnavailable: the token cannot be verified now.
        """
        if self._admin_hash is not None and hmac.compare_digest(hash_of(token), self._admin_hash):
            return Principal(ADMIN_IDENTITY, frozenset({Role.ADMIN}), "token")
        if token.startswith(PREFIX):
            stored = await self._tokens.verify(token)
            binding = Binding(stored.queues, stored.functions)
            namespaces = None if stored.namespaces is None else frozenset(stored.namespaces)
            return Principal(stored.identity, stored.roles, "token", binding=binding, namespaces=namespaces)
        if self._provider is None:
            raise InvalidToken("the token is unknown or revoked")
        return await self._provider.verify(token)
