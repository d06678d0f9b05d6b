"""Authentication: tokens of an identity provider, of the installation, and invalid tokens."""

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from pydantic import SecretStr
from structlog.testing import capture_logs

from tests.http.conftest import World
from tests.http.identity_provider import IssuingKey, Provider, identity_provider
from tests.plain_http import NO_AUTHORITIES
from tocsin.adapters.http.auth import authentication
from tocsin.adapters.http.auth.authentication import (
    FETCH_PAUSE_S,
    KEYS_MAX_AGE_S,
    KEYS_TTL_S,
    MAX_RESPONSE_BYTES,
    TOKEN_CHECK_S,
    Authentication,
    IdentityProvider,
)
from tocsin.adapters.http.auth.tokens import CACHE_TTL_S, PREFIX, Tokens
from tocsin.domain.access import Role
from tocsin.ports import LogUnavailable
from tocsin.settings import Auth
from tocsin.subjects import Bucket


@pytest.fixture
def provider() -> Iterator[Provider]:
    with identity_provider() as running:
        yield running


@pytest.fixture
async def guarded(world: World, provider: Provider) -> AsyncIterator[World]:
    """An API that accepts the tokens of an identity provider."""
    async with httpx.AsyncClient(trust_env=False, verify=NO_AUTHORITIES) as http:
        trusted = IdentityProvider(Auth(iam_url=provider.url), http, world.clock)
        world.authenticator = Authentication(Tokens(world.projections, world.clock), trusted, world.clock)
        world.client = world.copy()
        yield world


async def status(world: World, token: str | None) -> int:
    answer = await world.ask("GET", "/v1/jobs", **({"Authorization": f"Bearer {token}"} if token is not None else {}))
    return answer.status_code


def unsigned(token: str) -> str:
    """The claims of a token under `alg: none`."""
    return f"{encoded({'alg': 'none', 'typ': 'JWT'})}.{token.split('.')[1]}."


def encoded(part: dict[str, object]) -> str:
    """A part of a token."""
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def signed_with_what_is_public(provider: Provider) -> str:
    """A token whose HMAC secret is the public key, which a careless verifier accepts."""
    public = provider.key.private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    header = encoded({"alg": "HS256", "kid": provider.key.kid})
    expiry = int(datetime.now(UTC).timestamp()) + 300
    claims = encoded({"sub": "eve", "iss": provider.url, "aud": "tocsin", "exp": expiry})
    signature = hmac.digest(public, f"{header}.{claims}".encode(), "sha256")
    return f"{header}.{claims}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


REFUSED: dict[str, tuple[Callable[[Provider], str], str]] = {
    "expired": (lambda p: p.token(exp=datetime.now(UTC) - timedelta(minutes=2)), "it has expired"),
    "not valid yet": (lambda p: p.token(nbf=datetime.now(UTC) + timedelta(minutes=2)), "it is not valid yet"),
    "for others": (lambda p: p.token(aud="elsewhere"), "it is for another audience"),
    "for nobody": (lambda p: p.token(aud=None), "a claim is missing"),
    "of another issuer": (lambda p: p.token(iss="https://elsewhere.example"), "it comes from another issuer"),
    "without end": (lambda p: p.token(exp=None), "a claim is missing"),
    "ends as a text": (lambda p: p.token(exp="99999999999"), "its claim `exp` is no number"),
    "ends never": (lambda p: p.token(exp=1e300), "its claim `exp` is no number"),
    "ends at infinity": (lambda p: p.token(exp=float("inf")), "it cannot be verified"),
    "ends at once": (lambda p: p.token(exp=True), "it has expired"),
    "begins as a text": (lambda p: p.token(nbf="0"), "its claim `nbf` is no number"),
    "issued before time": (lambda p: p.token(iat=-5), "its claim `iat` is no number"),
    "about nobody": (lambda p: p.token(sub=None), "a claim is missing"),
    "about two lines": (lambda p: p.token("ada\r\nbea"), "its claim `sub` is no printable text"),
    "about half a character": (lambda p: p.token("\ud800"), "its claim `sub` is no printable text"),
    "about a book": (lambda p: p.token("a" * 256), "its claim `sub` is no printable text"),
    "of an unknown key": (
        lambda p: p.token(key=IssuingKey("two")),
        "a key that the identity provider does not publish",
    ),
    "forged": (lambda p: p.token(key=IssuingKey("one")), "its signature is wrong"),
    "changed": (lambda p: p.token()[:-6] + "AAAAAA", "its signature is wrong"),
    "unsigned": (lambda p: unsigned(p.token()), "its algorithm is not among RS256, ES256, EdDSA"),
    "signed with what is public": (signed_with_what_is_public, "its algorithm is not among RS256, ES256, EdDSA"),
    "no token": (lambda _: "nonsense", "it cannot be verified"),
    "no token of ours": (lambda _: f"{PREFIX}0123456789ab_nonsense", "unknown or revoked"),
    "the id of another key": (lambda _: f"{PREFIX}*_x", "unknown or revoked"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_invalid_token_is_refused_with_its_reason(guarded: World, provider: Provider, case: str) -> None:
    make, reason = REFUSED[case]
    token = make(provider)
    with capture_logs() as logs:
        answer = await guarded.ask("GET", "/v1/jobs", Authorization=f"Bearer {token}")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="tocsin", error="invalid_token"'
    assert reason in answer.json()["detail"]
    [line] = [line for line in logs if line.get("action") == "token-refused"]
    assert token not in str(line)
    assert token.rpartition(".")[2] == "" or token.rpartition(".")[2] not in answer.text


async def test_second_authorization_header_is_refused(guarded: World, provider: Provider) -> None:
    headers = [("Authorization", f"Bearer {provider.token()}"), ("Authorization", "Bearer other")]
    for order in (headers, headers[::-1]):
        async with guarded.copy() as client:
            answer = await client.get("/v1/jobs", headers=order)
        assert (answer.status_code, "2 headers" in answer.json()["detail"]) == (401, True)


async def test_presented_token_counts_where_none_is_required(world: World) -> None:
    assert await status(world, None) == 200
    token = await world.token("ada")
    assert await status(world, token) == 403
    assert await status(world, "nonsense") == 401


async def test_unavailable_tokens_open_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.token("ada")

    async def unavailable(bucket: Bucket) -> dict[str, bytes]:
        raise LogUnavailable(str(bucket))

    world.client = world.copy()
    with monkeypatch.context() as outage:
        outage.setattr(world.projections, "entries", unavailable)
        assert [await status(world, None) for _ in range(2)] == [503, 503]
    assert await status(world, None) == 401


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic YTpi", "bearer"])
async def test_missing_token_is_requested(guarded: World, header: str) -> None:
    answer = await guarded.ask("GET", "/v1/jobs", Authorization=header)
    assert answer.status_code == 401
    assert answer.json()["detail"].startswith("a bearer token is required")


async def test_roles_of_a_token_are_list_or_text(guarded: World, provider: Provider) -> None:
    assert await status(guarded, provider.token(roles=["scheduler-viewer", "somebody-else's"])) == 200
    assert await status(guarded, provider.token(roles="scheduler-viewer other")) == 200
    assert await status(guarded, provider.token()) == 403
    assert await status(guarded, provider.token(roles={"scheduler-admin": True})) == 403


async def test_who_was_let_in_is_in_the_facts(guarded: World, provider: Provider) -> None:
    token = provider.token("ada@example.com", roles=["scheduler-admin"])
    job = {"name": "job", "schedule": "@daily", "function": "f"}
    await guarded.ask("POST", "/v1/jobs", job, Authorization=f"Bearer {token}")
    [fact] = [recorded.message.document() for recorded in await guarded.facts("ledger.job.>")]
    assert fact["by"] == {"identity": "ada@example.com", "kind": "user", "source": "127.0.0.1"}


async def test_new_key_is_fetched_and_old_key_refused(guarded: World, provider: Provider) -> None:
    old = provider.token(roles="scheduler-viewer")
    assert await status(guarded, old) == 200
    new = IssuingKey("two")
    provider.published = [new]
    guarded.clock.advance(FETCH_PAUSE_S)
    assert await status(guarded, provider.token(key=new, roles="scheduler-viewer")) == 200
    assert await status(guarded, old) == 401


async def test_unknown_keys_do_not_cause_repeated_fetches(guarded: World, provider: Provider) -> None:
    await status(guarded, provider.token())
    asked = provider.asked
    for number in range(5):
        assert await status(guarded, provider.token(key=IssuingKey(f"k{number}"))) == 401
    assert provider.asked == asked


async def test_cached_keys_serve_for_a_limited_time(guarded: World, provider: Provider) -> None:
    token = provider.token(roles="scheduler-viewer", exp=datetime.now(UTC) + timedelta(days=1))
    assert await status(guarded, token) == 200
    provider.is_down = True
    guarded.clock.advance(KEYS_TTL_S)
    assert await status(guarded, token) == 200
    guarded.clock.advance(KEYS_MAX_AGE_S)
    answer = await guarded.ask("GET", "/v1/jobs", Authorization=f"Bearer {token}")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]


async def test_provider_that_never_answered_admits_no_caller(guarded: World, provider: Provider) -> None:
    provider.is_down = True
    assert await status(guarded, provider.token(roles="scheduler-admin")) == 503


async def test_oversized_provider_response_is_not_read_whole(guarded: World, provider: Provider) -> None:
    token = provider.token(roles="scheduler-viewer")
    provider.padding_bytes = 64 * MAX_RESPONSE_BYTES
    with capture_logs() as logs:
        assert await status(guarded, token) == 503
    [line] = [line for line in logs if line.get("action") == "no-keys"]
    assert str(MAX_RESPONSE_BYTES) in line["error"]
    assert provider.sent_bytes < provider.padding_bytes

    provider.padding_bytes = MAX_RESPONSE_BYTES // 2
    guarded.clock.advance(FETCH_PAUSE_S)
    assert await status(guarded, token) == 200


async def test_known_keys_serve_while_an_answer_drips(
    guarded: World, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = provider.token(roles="scheduler-viewer")
    assert await status(guarded, token) == 200
    monkeypatch.setattr(authentication, "MAX_SECONDS", 0.2)
    guarded.clock.advance(KEYS_TTL_S)
    with provider.dripping("/keys"):
        assert await status(guarded, token) == 200


async def test_one_request_waits_for_newer_keys(guarded: World, provider: Provider) -> None:
    token = provider.token(roles="scheduler-viewer")
    assert await status(guarded, token) == 200
    guarded.clock.advance(KEYS_TTL_S)
    asked = provider.asked
    with provider.dripping("/keys"):
        first = asyncio.create_task(status(guarded, token))
        while provider.asked < asked + 2:  # noqa: ASYNC110 - the provider runs in a thread
            await asyncio.sleep(0.01)
        assert await status(guarded, token) == 200
        assert not first.done()
    assert await first == 200


DAMAGED: dict[str, Callable[[Provider], bytes]] = {
    "deep": lambda _: b"[" * 200_000,
    "without keys": lambda _: b"{}",
    "an id that is a list": lambda p: json.dumps({"keys": [{**p.key.public(), "kid": ["one"]}]}).encode(),
    "a use that is a list": lambda p: json.dumps({"keys": [{**p.key.public(), "use": ["sig"]}]}).encode(),
}


@pytest.mark.parametrize("case", DAMAGED)
async def test_damaged_keys_admit_no_caller(guarded: World, provider: Provider, case: str) -> None:
    provider.bodies["/keys"] = DAMAGED[case](provider)
    assert await status(guarded, provider.token(roles="scheduler-admin")) in {401, 503}


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://a\x00b/", "file:///etc/passwd", None, "http://" + "a" * 100_000]
)
async def test_unusable_url_of_keys_admits_no_caller(guarded: World, provider: Provider, url: str | None) -> None:
    provider.bodies["/.well-known/openid-configuration"] = json.dumps({"jwks_uri": url}).encode()
    assert await status(guarded, provider.token(roles="scheduler-admin")) == 503


async def test_published_secret_verifies_no_token(guarded: World, provider: Provider) -> None:
    secret = base64.urlsafe_b64encode(b"k" * 32).rstrip(b"=").decode()
    keys = [{"kty": "oct", "kid": "secret", "k": secret}, provider.key.public()]
    provider.bodies["/keys"] = json.dumps({"keys": keys}).encode()
    head = encoded({"alg": "ES256", "kid": "secret"})
    claims = provider.token(roles="scheduler-admin").split(".")[1]
    signature = hmac.digest(b"k" * 32, f"{head}.{claims}".encode(), "sha256")
    token = f"{head}.{claims}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
    answer = await guarded.ask("GET", "/v1/jobs", Authorization=f"Bearer {token}")
    assert "a key that the identity provider does not publish" in answer.json()["detail"]


async def test_first_token_closes_access_and_revoking_reopens_nothing(world: World) -> None:
    assert await status(world, None) == 200
    token, stored = await Tokens(world.projections, world.clock).create("ada", [Role.VIEWER])
    world.clock.advance(TOKEN_CHECK_S)
    assert await status(world, None) == 401
    assert await status(world, token) == 200

    assert await Tokens(world.projections, world.clock).revoke(stored.id)
    world.clock.advance(CACHE_TTL_S)
    assert await status(world, token) == 401
    assert await status(world, None) == 401


async def test_a_token_ends_when_its_time_is_over(world: World) -> None:
    token, _ = await Tokens(world.projections, world.clock).create("ada", [Role.VIEWER], lifetime=timedelta(hours=1))
    assert await status(world, token) == 200
    world.clock.advance(3_600)
    assert await status(world, token) == 401


async def test_a_token_with_another_secret_is_refused(world: World) -> None:
    token = await world.token("ada", Role.ADMIN)
    assert await status(world, token[:-1] + ("A" if token[-1] != "A" else "B")) == 401
    assert await status(world, token.removesuffix(secret_of(token))) == 401


async def test_only_a_hash_of_a_token_is_kept(world: World) -> None:
    token = await world.token("ada", Role.ADMIN)
    kept = b"".join((await world.projections.entries(Bucket.TOKENS)).values()).decode()
    assert secret_of(token) not in kept


def secret_of(token: str) -> str:
    """The secret may contain the separator that precedes it."""
    return token.removeprefix(PREFIX).partition("_")[2]


async def test_own_tokens_need_no_provider_expiry(guarded: World) -> None:
    token = await guarded.token("machine", Role.VIEWER)
    assert await status(guarded, token) == 200


ADMIN_TOKEN = "a1" * 16


@pytest.fixture
def administered(world: World) -> World:
    """An API whose settings have the token of an administrator; no other token exists."""
    world.authenticator = Authentication(
        Tokens(world.projections, world.clock), None, world.clock, admin_token=SecretStr(ADMIN_TOKEN)
    )
    world.client = world.copy()
    return world


async def test_admin_token_of_settings_closes_access(administered: World) -> None:
    assert await administered.authenticator.is_required()  # type: ignore[union-attr]
    assert await status(administered, None) == 401
    assert await status(administered, ADMIN_TOKEN) == 200


@pytest.mark.parametrize(
    "wrong", [ADMIN_TOKEN[:-1], f"{ADMIN_TOKEN}1", ADMIN_TOKEN.upper(), "tcsn_000000000000_a", "é"]
)
async def test_other_tokens_are_refused_beside_it(administered: World, wrong: str) -> None:
    answer = await administered.client.get("/v1/jobs", headers=[(b"Authorization", f"Bearer {wrong}".encode())])
    assert answer.status_code == 401
    assert ADMIN_TOKEN not in answer.text


async def test_admin_token_creates_tokens_and_is_recorded(administered: World) -> None:
    admin = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    body = {"identity": "ci", "roles": ["scheduler-viewer"]}
    created = (await administered.ask("POST", "/v1/tokens", body, **admin)).json()
    assert (created["created_by"]["identity"], created["created_by"]["kind"]) == ("admin-token", "token")
    assert await status(administered, created["token"]) == 200


async def test_admin_token_counts_beside_a_provider(world: World, provider: Provider) -> None:
    async with httpx.AsyncClient(trust_env=False, verify=NO_AUTHORITIES) as http:
        trusted = IdentityProvider(Auth(iam_url=provider.url), http, world.clock)
        world.authenticator = Authentication(
            Tokens(world.projections, world.clock), trusted, world.clock, admin_token=SecretStr(ADMIN_TOKEN)
        )
        world.client = world.copy()
        assert await status(world, ADMIN_TOKEN) == 200
        assert await status(world, provider.token(roles="scheduler-viewer")) == 200


async def test_token_that_the_api_creates_is_accepted(world: World) -> None:
    admin = {"Authorization": f"Bearer {await world.token('root', Role.ADMIN)}"}
    body = {"identity": "ci", "roles": ["scheduler-viewer"], "lifetime": "90d"}
    answer = await world.ask("POST", "/v1/tokens", body, **admin)
    created = answer.json()
    assert (answer.status_code, answer.headers["Cache-Control"]) == (201, "no-store")
    assert (created["created_by"]["identity"], created["expires_at"]) == ("root", "2026-04-01T00:00:00Z")
    as_created = {"Authorization": f"Bearer {created['token']}"}
    assert (await world.ask("GET", "/v1/jobs", **as_created)).status_code == 200
    assert (await world.ask("GET", "/v1/tokens", **as_created)).status_code == 403
    listed = (await world.ask("GET", "/v1/tokens", **admin)).json()["tokens"]
    assert [token["identity"] for token in listed] == ["root", "ci"]
    assert created["token"].split("_", 2)[2] not in str(listed)
    assert (await world.ask("DELETE", f"/v1/tokens/{created['id']}", **admin)).json()["revoked"] is True
    assert (await world.ask("DELETE", f"/v1/tokens/{created['id']}", **admin)).status_code == 404


async def test_repeated_creation_is_not_answered_from_storage(world: World) -> None:
    body = {"identity": "ci", "roles": ["scheduler-admin"]}
    answer = await world.ask("POST", "/v1/tokens", body, Idempotency_Key="again")
    stored = str(await world.projections.entries(Bucket.ANSWERS))
    assert answer.json()["token"].rpartition("_")[2] not in stored


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"identity": ""}, "identity"),
        ({"identity": "a\nb"}, "identity"),
        ({"roles": []}, "roles"),
        ({"roles": ["root"]}, "roles.0"),
        ({"lifetime": "soon"}, "lifetime"),
        ({"lifetime": "0s"}, "lifetime"),
        ({"lifetime": 1e300}, "lifetime"),
        ({"queues": ["mail"]}, "queues"),
        ({"functions": ["mail/*"]}, "functions"),
        ({"roles": ["scheduler-worker"]}, "queues"),
        ({"roles": ["scheduler-worker"], "queues": ["Mail"]}, "queues"),
        ({"secret": "mine"}, "secret"),
    ],
)
async def test_wrong_token_request_names_its_field(world: World, wrong: dict[str, object], field: str) -> None:
    answer = await world.ask("POST", "/v1/tokens", {"identity": "ci", "roles": ["scheduler-viewer"], **wrong})
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert await world.projections.entries(Bucket.TOKENS) == {}


@pytest.mark.parametrize(
    ("claims", "namespaces"),
    [
        ({}, None),
        ({"namespaces": ["payments"]}, ["payments"]),
        ({"namespaces": "payments billing"}, ["billing", "payments"]),
        ({"namespaces": []}, []),
        ({"namespaces": {"payments": True}}, []),
        ({"namespaces": [1, ["payments"]]}, []),
        ({"nulls": ("namespaces",)}, []),
    ],
)
async def test_claim_binds_to_namespaces(
    guarded: World, provider: Provider, claims: dict[str, Any], namespaces: list[str] | None
) -> None:
    await guarded.given(name="payments.job", queue="payments.mail")
    await guarded.given(name="other")
    token = provider.token("ada", roles=["scheduler-admin"], **claims)
    me = (await guarded.ask("GET", "/v1/me", Authorization=f"Bearer {token}")).json()
    assert me["namespaces"] == namespaces
    assert ("administer" in me["permissions"]) is (namespaces is None)
    jobs = (await guarded.ask("GET", "/v1/jobs", Authorization=f"Bearer {token}")).json()["jobs"]
    seen = ["other", "payments.job"] if namespaces is None else ["payments.job"] if "payments" in namespaces else []
    assert [job["name"] for job in jobs] == seen
