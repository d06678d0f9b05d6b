"""Who somebody is by their token: one of the installation's own, or one of the identity provider's."""

from typing import Final

from ....domain.access import Role
from ....ports import Clock
from .identity_provider import IdentityProvider
from .tokens import PREFIX, InvalidToken, Tokens

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
