"""Tokens of an installation, and the checks of `tocsin doctor`, through its HTTP API."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from ...domain.access import NO_TASKS, Binding, Role
from ...domain.events import Actor
from ...services.health import Finding
from ...services.operations.errors import NotFound
from .api_client import ApiClient, path_of, read_as
from .auth.tokens import StoredToken


class RemoteAdmin:
    """An installation at a URL. Its methods on tokens are those of `Tokens`."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def create(
        self,
        identity: str,
        roles: Collection[Role],
        *,
        binding: Binding = NO_TASKS,
        namespaces: Collection[str] | None = None,
        lifetime: timedelta | None = None,
        by: Actor | None = None,
    ) -> tuple[str, StoredToken]:
        """See `Tokens`. The API records the identity of the caller's token in place of `by`."""
        _ = by
        body: dict[str, Any] = {"identity": identity, "roles": list(roles)}
        if lifetime is not None:
            body["lifetime"] = lifetime.total_seconds()
        if binding.queues:
            body |= {"queues": list(binding.queues), "functions": list(binding.functions)}
        if namespaces is not None:
            body["namespaces"] = sorted(namespaces)
        created = await self._api.request("POST", "/v1/tokens", body)
        return created.pop("token"), _stored(created)

    async def list(self) -> list[StoredToken]:
        return [_stored(token) for token in (await self._api.request("GET", "/v1/tokens"))["tokens"]]

    async def revoke(self, token_id: str) -> bool:
        try:
            await self._api.request("DELETE", path_of("tokens", token_id))
        except NotFound:
            return False
        return True

    async def examine(self) -> Sequence[Finding]:
        """Run the checks of `tocsin doctor`, except those of monitoring endpoints."""
        return read_as(list[Finding], (await self._api.request("GET", "/v1/doctor"))["findings"])


def _stored(token: dict[str, Any]) -> StoredToken:
    return StoredToken.model_validate({**token, "hash": ""})
