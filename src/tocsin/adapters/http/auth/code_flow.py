"""Sign in through the identity provider, by its code flow with PKCE.

A browser is sent to the provider and comes back with a code, which this server exchanges for tokens. `state` binds the answer to
the browser that began, the verifier of PKCE binds the code to this server's exchange, and the nonce binds the id token to both (RFC 6749, RFC 7636, OpenID Connect Core §3.1).
"""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import httpx

from .... import telemetry
from ....domain.definition import shorten
from ....domain.errors import TocsinError
from ....ports import Clock
from ....settings import Auth
from ....settings.fields import is_http_url
from .authentication import FETCH_PAUSE_S, KEYS_TTL_S, IdentityProvider, ProviderUnavailable, read_json
from .tokens import InvalidToken

MAX_EXCHANGES: Final = 8
"""Requests to the provider's token endpoint that run at once; others wait."""
_SECRET_BYTES: Final = 32

_log = telemetry.get_logger("tocsin.http")


class SignInFailed(TocsinError):
    """The provider did not sign a person in; the text may hold its words."""

    code = "sign-in-failed"


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """A sign-in that a browser began, as its cookie holds it."""

    state: str
    nonce: str
    verifier: str
    page: str
    """The path of the page that opens after it."""

    @classmethod
    def begin(cls, page: str) -> "SignInAttempt":
        """Return a new attempt, whose values cannot be guessed."""
        state, nonce, verifier = (secrets.token_urlsafe(_SECRET_BYTES) for _ in range(3))
        return cls(state, nonce, verifier, page)

    @classmethod
    def read(cls, cookie: str) -> "SignInAttempt | None":
        """Return the attempt in a cookie; None: it is damaged."""
        parts = cookie.split(".")
        if len(parts) != 4 or not all(parts):  # noqa: PLR2004 - the fields of this class
            return None
        state, nonce, verifier, page = parts
        try:
            path = base64.urlsafe_b64decode(page + "=" * (-len(page) % 4)).decode("ascii")
        except ValueError:
            return None
        return cls(state, nonce, verifier, path)

    def cookie(self) -> str:
        return f"{self.state}.{self.nonce}.{self.verifier}.{_encoded(self.page.encode('ascii'))}"

    @property
    def challenge(self) -> str:
        """The hash of the verifier, which the provider compares with it later (RFC 7636, S256)."""
        return _encoded(hashlib.sha256(self.verifier.encode()).digest())


class CodeFlow:
    """The sign-in at an identity provider."""

    def __init__(self, auth: Auth, http: httpx.AsyncClient, provider: IdentityProvider, clock: Clock) -> None:
        self._auth = auth
        self._http = http
        self._provider = provider
        self._clock = clock
        self._configuration: Mapping[str, Any] | None = None
        self._read_at = 0.0
        self._tried_at: float | None = None
        self._reading = asyncio.Lock()
        self._exchanges = asyncio.Semaphore(MAX_EXCHANGES)

    async def authorization_url(self, attempt: SignInAttempt, redirect_url: str) -> str:
        """Return the provider's page to which the browser goes.

        Raises:
            ProviderUnavailable: the provider's configuration cannot be read.
        """
        endpoint = await self._endpoint("authorization_endpoint")
        query = {
            **self._auth.sign_in_parameters,
            "response_type": "code",
            "client_id": self._auth.client_id or "",
            "redirect_uri": redirect_url,
            "scope": " ".join(self._auth.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def token(self, attempt: SignInAttempt, code: str, redirect_url: str) -> str:
        """Return a token that the API accepts, in exchange for a code.

        Raises:
            SignInFailed: the provider refuses the code, or gives no token that the API accepts.
            ProviderUnavailable: the provider cannot be reached.
        """
        async with self._exchanges:
            tokens = await self._exchange(attempt, code, redirect_url)
        id_token, access_token = tokens.get("id_token"), tokens.get("access_token")
        if not isinstance(id_token, str):
            raise SignInFailed("the identity provider sent no id token")
        await self._check_id_token(id_token, attempt)
        reasons = list[str]()
        for name, token in (("access token", access_token), ("id token", id_token)):
            if not isinstance(token, str):
                continue
            try:
                await self._provider.verify(token)
            except InvalidToken as error:
                reasons.append(f"the {name}: {error}")
            else:
                return token
        raise SignInFailed(
            f"the API accepts no token of this sign-in ({'; '.join(reasons)}). Let the provider issue access tokens for "
            f"the audience {self._auth.audience!r}, or set `auth.audience` to the audience that it names"
        )

    async def _check_id_token(self, token: str, attempt: SignInAttempt) -> None:
        try:
            claims = await self._provider.claims(token, self._auth.client_id or "", "nonce")
        except InvalidToken as error:
            raise SignInFailed(f"the id token of the identity provider is not accepted: {error}") from None
        if claims["nonce"] != attempt.nonce:
            raise SignInFailed("the id token of the identity provider belongs to another sign-in")
        if claims.get("azp", self._auth.client_id) != self._auth.client_id:
            raise SignInFailed("the id token of the identity provider was issued to another client")

    async def _exchange(self, attempt: SignInAttempt, code: str, redirect_url: str) -> Mapping[str, Any]:
        endpoint = await self._endpoint("token_endpoint")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_url,
            "code_verifier": attempt.verifier,
        }
        credentials = self._credentials(form)
        try:
            status, answer = await read_json(self._http, "POST", endpoint, data=form, auth=credentials)
        except ProviderUnavailable as error:
            _log.warning("exchange of a code failed", action="no-exchange", error=str(error))
            raise ProviderUnavailable("the identity provider did not answer the exchange of the code") from error
        if status != httpx.codes.OK:
            raise SignInFailed(f"the identity provider refused the code: {reason_of(answer)}")
        return answer

    def _credentials(self, form: dict[str, str]) -> httpx.BasicAuth | None:
        client, secret = self._auth.client_id or "", self._auth.client_secret
        methods = (self._configuration or {}).get("token_endpoint_auth_methods_supported")
        is_basic = not isinstance(methods, list) or "client_secret_basic" in methods
        if secret is not None and is_basic:
            return httpx.BasicAuth(quote_plus(client), quote_plus(secret.get_secret_value()))
        form["client_id"] = client
        if secret is not None:
            form["client_secret"] = secret.get_secret_value()
        return None

    async def _endpoint(self, name: str) -> str:
        url = (await self._configured()).get(name)
        if not isinstance(url, str) or not is_http_url(url):
            raise ProviderUnavailable(f"the configuration of the identity provider has no `{name}`")
        return url

    async def _configured(self) -> Mapping[str, Any]:
        async with self._reading:
            now = self._clock.monotonic()
            is_old = self._configuration is None or now - self._read_at >= KEYS_TTL_S
            if is_old and (self._tried_at is None or now - self._tried_at >= FETCH_PAUSE_S):
                self._tried_at = now
                try:
                    self._configuration, self._read_at = await self._provider.configuration(), now
                except ProviderUnavailable as error:
                    # A known configuration stays in use.
                    _log.warning(
                        "read of the identity provider's configuration failed",
                        action="no-provider-configuration",
                        error=repr(error),
                    )
            if self._configuration is None:
                raise ProviderUnavailable("the configuration of the identity provider cannot be read")
            return self._configuration


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def reason_of(answer: Mapping[str, Any]) -> str:
    """Return the error in an answer of the provider, shortened: its words are not ours."""
    words = [shorten(word, 300) for name in ("error", "error_description") if isinstance(word := answer.get(name), str)]
    return ": ".join(words) or "it gives no reason"
