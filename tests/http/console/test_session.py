"""The session of a browser: what its cookie permits, and what ends it."""

import json
from collections.abc import Mapping
from datetime import timedelta

import httpx
import pytest

from tests.http.conftest import World
from tests.http.console.browsers import Browser, listening, raw_request, set_cookies
from tests.http.test_roles import ADMIN, AUTHOR, OPERATOR, VIEWER, WORKER
from tocsin.adapters.http.auth.session import COOKIE, CSRF_HEADER, MAX_AGE_S, MAX_COOKIE_BYTES, csrf_token
from tocsin.adapters.http.auth.tokens import CACHE_TTL_S, Tokens
from tocsin.adapters.http.connections import MAX_HEAD_BYTES
from tocsin.adapters.http.middleware.rate_limit import MemoryRateLimit
from tocsin.domain.access import GRANTS, Permission, Role
from tocsin.settings import Server, Settings

JOB = {"name": "new", "schedule": "@daily", "function": "f"}


def kind(answer: httpx.Response) -> str:
    """The stable code of a problem."""
    return str(answer.json()["type"]).rpartition(":")[2]


async def test_session_lasts_from_sign_in_to_sign_out(world: World, browser: Browser) -> None:
    token = await world.token("ada", VIEWER)
    stranger = {"required": True, "signed_in": False, "provider": False, "csrf_token": None}
    assert await browser.session_state() == stranger
    assert kind(await browser.send("GET", "/v1/jobs")) == "unauthenticated"

    answer = await browser.sign_in(token)
    known = {"required": True, "signed_in": True, "provider": False, "csrf_token": csrf_token(token)}
    assert (answer.status_code, answer.json(), answer.headers["Cache-Control"]) == (200, known, "no-store")
    assert await browser.session_state() == known
    assert (await browser.send("GET", "/v1/jobs")).status_code == 200

    assert kind(await browser.send("DELETE", "/console/session")) == "csrf-token"
    assert (await browser.change("DELETE", "/console/session")).status_code == 204
    assert browser.cookies == {}
    assert await browser.session_state() == stranger


async def test_cookie_is_hidden_from_scripts_and_other_sites(world: World, browser: Browser) -> None:
    [cookie] = set_cookies(await browser.sign_in(await world.token("ada", VIEWER)))
    assert (cookie.key, cookie["path"], cookie["domain"], cookie["samesite"]) == (COOKIE, "/", "", "strict")
    assert (cookie["httponly"], cookie["secure"], cookie["max-age"]) == (True, "", str(MAX_AGE_S))


async def test_cookie_is_bound_to_https_and_its_host(world: World, http: httpx.AsyncClient) -> None:
    token = await world.token("ada", VIEWER)
    world.settings = Settings(server=Server(public_url="https://tocsin.example.com"))
    async with listening(world) as url:
        browser = Browser(url, http)
        public = {"Host": "tocsin.example.com"}
        answer = await browser.send("POST", "/console/session", {"token": token}, **public)
        [cookie] = set_cookies(answer)
        assert (cookie.key, cookie["path"], cookie["domain"]) == (f"__Host-{COOKIE}", "/", "")
        assert (cookie["secure"], cookie["httponly"]) == (True, True)
        assert (await browser.send("GET", "/v1/jobs", **public)).status_code == 200
        # A host beside it can plant a cookie without the prefix only, which does not count.
        browser.cookies = {COOKIE: token}
        assert kind(await browser.send("GET", "/v1/jobs", **public)) == "unauthenticated"


async def test_proxy_that_is_trusted_says_https(world: World, http: httpx.AsyncClient) -> None:
    token = await world.token("ada", VIEWER)
    world.settings = Settings(server=Server(trusted_proxies=("127.0.0.1",)))
    async with listening(world) as url:
        headers = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"}
        [cookie] = set_cookies(await http.post(f"{url}/console/session", json={"token": token}, headers=headers))
        assert (cookie.key, cookie["secure"]) == (f"__Host-{COOKIE}", True)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Origin": "https://evil.example"}, "forbidden"),
        ({"Origin": "null"}, "forbidden"),
        ({"Origin": "http://127.0.0.1:1"}, "forbidden"),
        ({"Origin": "evil://{host}"}, "forbidden"),
        ({"Origin": "{host}"}, "forbidden"),
        ({"Sec-Fetch-Site": "cross-site"}, "forbidden"),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:3000"}, "forbidden"),
    ],
)
async def test_other_origin_cannot_sign_a_browser_in(
    world: World, browser: Browser, headers: Mapping[str, str], code: str
) -> None:
    token = await world.token("eve", VIEWER)
    host = browser.url.partition("://")[2]
    given = {name: value.replace("{host}", host) for name, value in headers.items()}
    answer = await browser.send("POST", "/console/session", {"token": token}, **given)
    assert (answer.status_code, kind(answer), set_cookies(answer)) == (403, code, [])


async def test_fetch_metadata_of_the_console_suffices(world: World, browser: Browser) -> None:
    token = await world.token("ada", VIEWER)
    body = {"token": f" {token}\n"}  # pasted with the line's end
    answer = await browser.send("POST", "/console/session", body, Origin="null", Sec_Fetch_Site="same-origin")
    assert (answer.status_code, browser.session) == (200, token)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"token": ""}, "unauthenticated"),
        ({"token": "nonsense"}, "unauthenticated"),
        ({"token": "tcsn_0123456789ab_x"}, "unauthenticated"),
        ({"token": "a; Domain=evil.example"}, "unauthenticated"),
        ({"token": "a\r\nSet-Cookie: b=c"}, "unauthenticated"),
        ({"token": "ä"}, "unauthenticated"),
        ({"token": "\ud800"}, "unauthenticated"),
        ({"token": "a" * 1_000_000}, "unauthenticated"),
        ({"token": 1}, "invalid-request"),
        ({"token": None}, "invalid-request"),
        ({}, "invalid-request"),
        ({"token": "a", "next": "b"}, "invalid-request"),
        ([], "invalid-request"),
    ],
)
async def test_wrong_token_begins_no_session(browser: Browser, body: object, code: str) -> None:
    answer = await browser.send("POST", "/console/session", body)
    assert (kind(answer), browser.cookies) == (code, {})


async def test_body_of_a_sign_in_is_limited(url: str, http: httpx.AsyncClient) -> None:
    answer = await http.post(f"{url}/console/session", content=b" " * (Server().max_body + 1))
    assert kind(answer) == "too-large"


async def test_guesses_of_tokens_are_slowed_down(world: World, http: httpx.AsyncClient) -> None:
    token = await world.token("ada", VIEWER)
    world.rate = MemoryRateLimit(world.clock, rate=1, burst=3)
    async with listening(world) as url:
        browser = Browser(url, http)
        guess = [await browser.send("POST", "/console/session", {"token": f"tcsn_{n}"}) for n in range(4)]
        assert [kind(answer) for answer in guess] == ["unauthenticated"] * 3 + ["too-many-requests"]
        browser.cookies = {COOKIE: "guess"}
        for path in ("/v1/jobs", "/console/session"):
            assert kind(await browser.send("GET", path)) == "too-many-requests"
        assert (await browser.sign_in(token)).status_code == 200  # a right token is no guess


@pytest.mark.parametrize("role", [*Role, None])
async def test_session_permits_what_the_token_permits(world: World, browser: Browser, role: Role | None) -> None:
    await world.given(name="job")
    await browser.sign_in(await world.token("ada", *([role] if role else []), queues=("default",)))
    permitted = {
        ("GET", "/v1/me"): {*Role, None},
        ("GET", "/v1/jobs"): {ADMIN, OPERATOR, AUTHOR, VIEWER, Role.CATALOG},
        ("GET", "/v1/executions"): {ADMIN, OPERATOR, AUTHOR, VIEWER},
        ("POST", "/v1/jobs/job/trigger"): {ADMIN, OPERATOR},
        ("POST", "/v1/jobs"): {ADMIN, AUTHOR},
        ("DELETE", "/v1/jobs/job"): {ADMIN},
        ("GET", "/v1/tokens"): {ADMIN},
    }
    for (method, path), roles in permitted.items():
        answer = await browser.change(method, path, JOB if (method, path) == ("POST", "/v1/jobs") else None)
        assert answer.is_success == (role in roles), (method, path, answer.text)
        assert answer.is_success or answer.status_code == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/jobs"),
        ("PUT", "/v1/jobs/new"),
        ("DELETE", "/v1/jobs/job"),
        ("POST", "/v1/jobs/job/pause"),
        ("PATCH", "/v1/dead-letters/1"),
        ("POST", "/v1/explain"),
        ("POST", "/v1/tokens"),
    ],
)
@pytest.mark.parametrize("given", ["", "none", "wrong", "of another session"])
async def test_change_needs_the_csrf_token(world: World, browser: Browser, method: str, path: str, given: str) -> None:
    await world.given(name="job")
    before = await world.facts("ledger.>")
    await browser.sign_in(await world.token("ada", ADMIN))
    wrong = {"": "", "none": None, "wrong": "0" * 64, "of another session": csrf_token(await world.token("eve", ADMIN))}
    answer = await browser.send(method, path, JOB, csrf=wrong[given])
    assert (answer.status_code, kind(answer)) == (403, "csrf-token")
    assert await world.facts("ledger.>") == before


async def test_csrf_token_that_is_no_text_is_refused(world: World, url: str) -> None:
    token = await world.token("ada", ADMIN)
    head = f"DELETE /v1/jobs/job HTTP/1.1\r\nCookie: {COOKIE}={token}\r\n{CSRF_HEADER}: ".encode() + b"\xff\xfe"
    assert b"urn:tocsin:problem:csrf-token" in await raw_request(url, head)


async def test_repeated_request_needs_the_csrf_token(world: World, browser: Browser) -> None:
    await browser.sign_in(await world.token("ada", ADMIN))
    key = {"Idempotency-Key": "again"}
    assert (await browser.send("POST", "/v1/jobs", JOB, csrf=browser.csrf, **key)).status_code == 201
    assert kind(await browser.send("POST", "/v1/jobs", JOB, **key)) == "csrf-token"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
async def test_other_site_uses_no_session(world: World, browser: Browser, method: str, site: str) -> None:
    await world.given(name="job")
    await browser.sign_in(await world.token("ada", ADMIN))
    answer = await browser.send(method, "/v1/jobs/job", csrf=browser.csrf, Sec_Fetch_Site=site)
    assert (answer.status_code, kind(answer)) == (403, "forbidden")
    own = await browser.send(method, "/v1/jobs/job", csrf=browser.csrf, Sec_Fetch_Site="same-origin")
    assert own.is_success


async def test_bearer_token_counts_before_the_cookie(world: World, browser: Browser) -> None:
    await browser.sign_in(await world.token("ada", ADMIN))
    viewer = {"Authorization": f"Bearer {await world.token('eve', VIEWER)}"}
    assert (await browser.send("GET", "/v1/me", **viewer)).json()["identity"] == "eve"
    assert kind(await browser.send("POST", "/v1/jobs", JOB, **viewer)) == "forbidden"
    wrong = await browser.send("GET", "/v1/me", Authorization="Bearer nonsense")
    assert kind(wrong) == "unauthenticated"
    # A program needs no CSRF token, and a damaged cookie does not count.
    admin = {"Authorization": f"Bearer {browser.session}"}
    browser.cookies = {COOKIE: "damaged"}
    assert (await browser.send("POST", "/v1/jobs", JOB, **admin)).status_code == 201


@pytest.mark.parametrize("path", ["/ojs/v1/queues", "/ojs/v1/cron"])
async def test_session_does_not_count_for_programs(world: World, browser: Browser, path: str) -> None:
    await browser.sign_in(await world.token("ada", ADMIN))
    answer = await browser.change("GET", path)
    assert answer.status_code == 401


async def test_event_stream_follows_by_the_session(world: World, browser: Browser) -> None:
    await browser.sign_in(await world.token("ada", VIEWER))
    await world.given(name="shown")
    await world.given(name="hidden", owner="token:bea", viewers=("token:carl",))
    await world.given(name="last")
    url, cookie = f"{browser.url}/v1/events", f"{COOKIE}={browser.session}"
    async with browser.http.stream("GET", url, params={"after": "0.0"}, headers={"Cookie": cookie}) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        data = (json.loads(line.removeprefix("data: ")) async for line in lines if line.startswith("data: "))
        jobs = [(await anext(data))["fact"]["definition"]["name"] for _ in range(2)]
    assert jobs == ["shown", "last"]
    worker = Browser(browser.url, browser.http)
    await worker.sign_in(await world.token("w", WORKER, queues=("default",)))
    assert kind(await worker.send("GET", "/v1/events")) == "forbidden"


async def test_revoked_token_ends_the_session(world: World, browser: Browser) -> None:
    token, stored = await Tokens(world.projections, world.clock).create("ada", [ADMIN])
    await browser.sign_in(token)
    await Tokens(world.projections, world.clock).revoke(stored.id)
    world.clock.advance(CACHE_TTL_S)
    assert kind(await browser.send("GET", "/v1/jobs")) == "unauthenticated"
    assert kind(await browser.change("POST", "/v1/jobs", JOB)) == "unauthenticated"
    assert await browser.session_state() == {
        "required": True,
        "signed_in": False,
        "provider": False,
        "csrf_token": None,
    }
    assert browser.cookies == {}


async def test_expired_token_ends_the_session(world: World, browser: Browser) -> None:
    tokens = Tokens(world.projections, world.clock)
    token, _ = await tokens.create("ada", [VIEWER], lifetime=timedelta(hours=1))
    await browser.sign_in(token)
    world.clock.advance(3_600)
    assert kind(await browser.send("GET", "/v1/jobs")) == "unauthenticated"


@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.parametrize(
    "cookie", ["", "nonsense", "tcsn_0123456789ab_x", "a b", '"quoted"', "ä", "a" * (MAX_COOKIE_BYTES + 1), "a,b"]
)
async def test_bad_cookie_admits_no_caller(
    world: World,
    url: str,
    cookie: str,
    is_required: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    if is_required:
        await world.token("first", VIEWER)
    head = f"GET /v1/jobs HTTP/1.1\r\nCookie: other=1; {COOKIE}={cookie}; more=2"
    answer = await raw_request(url, head.encode())
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"urn:tocsin:problem:unauthenticated" in answer


async def test_second_cookie_of_the_name_is_refused(world: World, url: str) -> None:
    token = await world.token("ada", ADMIN)
    for head in (
        f"Cookie: {COOKIE}={token}; {COOKIE}={token}",
        f"Cookie: {COOKIE}={token}\r\nCookie: {COOKIE}={token}",
    ):
        answer = await raw_request(url, f"GET /v1/jobs HTTP/1.1\r\n{head}".encode())
        assert answer.startswith(b"HTTP/1.1 401 ")


async def test_cookie_of_another_name_is_ignored(url: str, http: httpx.AsyncClient) -> None:
    for name in ("session", f"x{COOKIE}", f"{COOKIE}x", COOKIE.upper(), f"__Host-{COOKIE}"):
        answer = await http.get(f"{url}/v1/me", headers={"Cookie": f"{name}=nonsense"})
        assert answer.json()["identity"] == "anonymous", name


async def test_huge_cookie_is_refused(url: str) -> None:
    answer = await raw_request(url, f"GET /v1/jobs HTTP/1.1\r\nCookie: {COOKIE}={'a' * MAX_HEAD_BYTES}".encode())
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 401 "))  # the head or the cookie, as the pieces arrive


async def test_session_is_not_required_on_this_machine(browser: Browser) -> None:
    assert await browser.session_state() == {
        "required": False,
        "signed_in": False,
        "provider": False,
        "csrf_token": None,
    }
    assert (await browser.send("POST", "/v1/jobs", JOB, Origin=browser.url)).status_code == 201
    assert kind(await browser.send("POST", "/v1/jobs", JOB, Origin="https://evil.example")) == "forbidden"


@pytest.mark.parametrize("role", Role)
async def test_caller_sees_its_roles_and_permissions(world: World, role: Role) -> None:
    token = await world.token("ada", role, queues=("mail",))
    answer = await world.ask("GET", "/v1/me", Authorization=f"Bearer {token}")
    assert answer.json() == {
        "identity": "ada",
        "kind": "token",
        "roles": [role],
        "permissions": sorted(GRANTS[role]),
        "namespaces": None,
    }


async def test_anonymous_caller_is_an_administrator(world: World) -> None:
    assert (await world.ask("GET", "/v1/me")).json() == {
        "identity": "anonymous",
        "kind": "local",
        "roles": [ADMIN],
        "permissions": sorted(Permission),
        "namespaces": None,
    }
    await world.token("first", VIEWER)
    world.client = world.copy()
    assert kind(await world.ask("GET", "/v1/me")) == "unauthenticated"
    assert kind(await world.ask("GET", "/v1/me?x=1", Authorization=f"Bearer {await world.token('ada')}")) == (
        "invalid-request"
    )
