"""The sign-in through an identity provider that answers over HTTP."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlsplit

import httpx
import pytest
from pydantic import SecretStr, ValidationError

from tests.http.conftest import World
from tests.http.console.browsers import Browser, listening, set_cookies
from tests.http.identity_provider import CLIENT, SECRET, Provider, identity_provider
from tocsin.adapters.http.auth import authentication
from tocsin.adapters.http.auth.authentication import FETCH_PAUSE_S, Authentication, IdentityProvider
from tocsin.adapters.http.auth.code_flow import CodeFlow, SignInAttempt
from tocsin.adapters.http.auth.session import COOKIE, MAX_COOKIE_BYTES
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.adapters.http.console.files import CONTENT_SECURITY_POLICY
from tocsin.adapters.http.console.sign_in import COOKIE as ATTEMPT
from tocsin.adapters.http.console.sign_in import MAX_AGE_S, MAX_PAGE
from tocsin.settings import Auth, Server, Settings


@pytest.fixture
def provider() -> Iterator[Provider]:
    with identity_provider() as running:
        yield running


def trust(world: World, auth: Auth, http: httpx.AsyncClient) -> None:
    """Let a world accept the tokens of a provider."""
    trusted = IdentityProvider(auth, http, world.clock)
    world.authenticator = Authentication(Tokens(world.projections, world.clock), trusted, world.clock)
    world.code_flow = CodeFlow(auth, http, trusted, world.clock)


@pytest.fixture
async def browser(world: World, provider: Provider, http: httpx.AsyncClient) -> AsyncIterator[Browser]:
    trust(world, Auth(iam_url=provider.url, client_id=CLIENT), http)
    async with listening(world) as url:
        yield Browser(url, http)


async def at_provider(browser: Browser, query: str = "", **headers: str) -> str:
    """Begin a sign-in; return the path and query to which the provider sends the browser back."""
    away = await browser.send("GET", f"/console/sign-in{query}", **headers)
    assert away.status_code == 303, away.text
    back = urlsplit((await browser.http.get(away.headers["Location"])).headers["Location"])
    return f"{back.path}?{back.query}"


async def signed_in(browser: Browser, query: str = "") -> httpx.Response:
    """Sign in; return the last answer."""
    return await browser.send("GET", await at_provider(browser, query))


async def failure(browser: Browser, answer: httpx.Response, status: int) -> str:
    """Check that no session began; return the page."""
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
    assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert COOKIE not in browser.cookies
    assert not (await browser.session_state())["signed_in"]
    return answer.text


async def test_person_signs_in_through_the_provider(browser: Browser) -> None:
    assert (await browser.session_state())["provider"] is True
    answer = await signed_in(browser, "?next=/console/jobs/nightly%3Ftab%3Druns")
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")
    assert '<meta http-equiv="refresh" content="0; url=/console/jobs/nightly?tab=runs">' in answer.text
    assert "<script" not in answer.text
    [kept, removed] = set_cookies(answer)
    assert (kept.key, kept["samesite"], kept["httponly"]) == (COOKIE, "strict", True)
    assert (removed.key, removed["max-age"]) == (ATTEMPT, "0")
    state = await browser.session_state()
    assert state["signed_in"] is True
    me = (await browser.send("GET", "/v1/me")).json()
    assert (me["identity"], me["kind"], me["roles"]) == ("ada", "user", ["scheduler-viewer"])
    refused = await browser.send("POST", "/v1/jobs", {}, csrf=state["csrf_token"])
    assert refused.json()["type"] == "urn:tocsin:problem:forbidden"


@pytest.mark.parametrize(
    "page",
    [
        *(
            "/console/../v1/jobs",
            "/console/jobs/..",
            "/console/%2e%2e/v1/tokens",
            "/console/.%2E/v1",
            "/console//evil.example",
        ),
        *(
            "/console/jobs//evil.example/..",
            "/console/%2f%2fevil.example",
            "/console/./jobs",
            "//evil.example",
            "/consoles",
        ),
    ],
)
async def test_page_after_sign_in_stays_in_the_console(browser: Browser, page: str) -> None:
    answer = await signed_in(browser, f"?next={quote(page, safe='')}")
    assert 'content="0; url=/console"' in answer.text


async def test_attempt_is_bound_to_its_browser(browser: Browser) -> None:
    [cookie] = set_cookies(await browser.send("GET", "/console/sign-in"))
    assert (cookie.key, cookie["samesite"], cookie["httponly"], cookie["path"]) == (ATTEMPT, "lax", True, "/")
    assert cookie["max-age"] == str(MAX_AGE_S)
    again = set_cookies(await browser.send("GET", "/console/sign-in"))
    assert again[0].value != cookie.value


@pytest.mark.parametrize("methods", [None, ["client_secret_basic"], ["client_secret_post"]])
async def test_client_with_a_secret_proves_itself(
    world: World, provider: Provider, http: httpx.AsyncClient, methods: list[str] | None
) -> None:
    provider.sign_ins.secret, provider.sign_ins.auth_methods = SECRET, methods
    trust(world, Auth(iam_url=provider.url, client_id=CLIENT, client_secret=SecretStr(SECRET)), http)
    async with listening(world) as url:
        assert COOKIE in set_cookies(await signed_in(Browser(url, http)))[0].key
    trust(world, Auth(iam_url=provider.url, client_id=CLIENT, client_secret=SecretStr("wrong")), http)
    async with listening(world) as url:
        browser = Browser(url, http)
        assert "refused the code" in await failure(browser, await signed_in(browser), 400)


async def test_provider_gets_the_parameters_of_the_settings(
    world: World, provider: Provider, http: httpx.AsyncClient
) -> None:
    more = {"audience": "https://tocsin.example/ä?&state=x"}
    trust(world, Auth(iam_url=provider.url, client_id=CLIENT, sign_in_parameters=more), http)
    async with listening(world) as url:
        answer = await http.get(f"{url}/console/sign-in")
    query = parse_qsl(urlsplit(answer.headers["Location"]).query)
    assert ("audience", more["audience"]) in query
    assert [value for name, value in query if name == "client_id"] == [CLIENT]
    assert len([name for name, _ in query if name == "state"]) == 1


async def test_id_token_counts_beside_opaque_access_token(
    world: World, provider: Provider, http: httpx.AsyncClient
) -> None:
    provider.sign_ins.answers = {"access_token": "opaque"}
    provider.sign_ins.id_claims = {"roles": "scheduler-operator"}
    trust(world, Auth(iam_url=provider.url, client_id=CLIENT, audience=CLIENT), http)
    async with listening(world) as url:
        browser = Browser(url, http)
        await signed_in(browser)
        assert (await browser.send("GET", "/v1/me")).json()["roles"] == ["scheduler-operator"]


@pytest.mark.parametrize(
    "page",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/console\\@evil.example",
        "/consolevil",
        "/v1/jobs",
        "javascript:alert(1)",
        "/console/\r\nSet-Cookie: a=b",
        "/console/ä",
        "/console/" + "a" * MAX_PAGE,
        "",
    ],
)
async def test_sign_in_leads_to_the_console_only(browser: Browser, page: str) -> None:
    answer = await signed_in(browser, str(httpx.URL("/", params={"next": page}))[1:])
    assert 'content="0; url=/console"' in answer.text


async def test_page_of_the_console_is_written_as_text(browser: Browser) -> None:
    page = '/console/jobs/"><script>alert(1)</script>'
    answer = await signed_in(browser, str(httpx.URL("/", params={"next": page}))[1:])
    assert "<script" not in answer.text
    assert "&quot;&gt;&lt;script&gt;" in answer.text


@pytest.mark.parametrize("state", ["", "other", "ä", "\x00"])
async def test_wrong_state_begins_no_session(browser: Browser, state: str) -> None:
    await at_provider(browser)
    answer = await browser.send("GET", str(httpx.URL("/console/callback", params={"state": state, "code": "code-0"})))
    assert "did not begin the sign-in" in await failure(browser, answer, 400)


async def test_callback_of_another_browser_begins_no_session(browser: Browser) -> None:
    callback = await at_provider(browser)
    for cookies in (
        {},
        {ATTEMPT: SignInAttempt.begin("/console").cookie()},
        {ATTEMPT: "damaged"},
        {ATTEMPT: "a.b.c.!"},
    ):
        victim = Browser(browser.url, browser.http, cookies=cookies)
        await failure(victim, await victim.send("GET", callback), 400)


async def test_attempt_with_a_foreign_page_is_refused(browser: Browser) -> None:
    attempt = SignInAttempt.begin("https://evil.example/")
    browser.cookies = {ATTEMPT: attempt.cookie()}
    answer = await browser.send("GET", f"/console/callback?state={attempt.state}&code=x")
    await failure(browser, answer, 400)


async def test_state_and_code_are_used_once(browser: Browser) -> None:
    callback = await at_provider(browser)
    kept = dict(browser.cookies)
    assert (await browser.send("GET", callback)).status_code == 200
    browser.cookies = {}
    await failure(browser, await browser.send("GET", callback), 400)
    browser.cookies = kept  # a client that keeps what the server removed
    page = await failure(browser, await browser.send("GET", callback), 400)
    assert "refused the code: invalid_grant: &lt;b&gt;no&lt;/b&gt;" in page


async def test_error_of_the_provider_is_shown_as_text(browser: Browser, provider: Provider) -> None:
    provider.sign_ins.refusal = {"error": "access_denied", "error_description": "<img src=x onerror=alert(1)>" * 50}
    page = await failure(browser, await signed_in(browser), 400)
    assert "access_denied: &lt;img src=x" in page
    assert "<img" not in page
    assert len(page) < 2_000
    assert browser.cookies == {}


async def test_callback_without_code_or_error_fails(browser: Browser) -> None:
    state = dict(parse_qsl(urlsplit(await at_provider(browser)).query))["state"]
    await failure(browser, await browser.send("GET", f"/console/callback?state={state}"), 400)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"nonce": "other"}, "belongs to another sign-in"),
        ({"nonce": None}, "a claim is missing"),
        ({"aud": "elsewhere"}, "it is for another audience"),
        ({"azp": "elsewhere"}, "was issued to another client"),
        ({"iss": "https://elsewhere.example"}, "it comes from another issuer"),
        ({"exp": datetime(2020, 1, 1, tzinfo=UTC)}, "it has expired"),
    ],
)
async def test_wrong_id_token_begins_no_session(
    browser: Browser, provider: Provider, claims: dict[str, object], reason: str
) -> None:
    provider.sign_ins.id_claims = claims
    assert reason in await failure(browser, await signed_in(browser), 400)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"id_token": None}, "no id token"),
        ({"id_token": 7}, "no id token"),
        ({"id_token": "nonsense"}, "is not accepted"),
        ({"id_token": "\ud800.a.b"}, "is not accepted"),
        ({"access_token": "opaque"}, "set `auth.audience`"),
        ({"access_token": None}, "set `auth.audience`"),
    ],
)
async def test_wrong_tokens_begin_no_session(
    browser: Browser, provider: Provider, answers: dict[str, object], reason: str
) -> None:
    provider.sign_ins.answers = answers
    assert reason in await failure(browser, await signed_in(browser), 400)


async def test_token_that_no_cookie_holds_is_explained(browser: Browser, provider: Provider) -> None:
    provider.sign_ins.access_claims = {"groups": ["g" * 50] * 100}
    page = await failure(browser, await signed_in(browser), 413)
    assert f"{MAX_COOKIE_BYTES:,}" in page


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[" * 100_000, b" " * 2_000_000])
async def test_unreadable_exchange_begins_no_session(browser: Browser, provider: Provider, body: bytes) -> None:
    callback = await at_provider(browser)
    provider.sign_ins.body = body
    await failure(browser, await browser.send("GET", callback), 503)


async def test_endless_exchange_begins_no_session(
    browser: Browser, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "MAX_SECONDS", 0.2)
    callback = await at_provider(browser)
    with provider.dripping("/token"):
        page = await failure(browser, await browser.send("GET", callback), 503)
    assert "did not answer the exchange" in page


async def test_provider_that_is_away_is_named(world: World, browser: Browser, provider: Provider) -> None:
    provider.is_down = True
    assert "cannot be read" in await failure(browser, await browser.send("GET", "/console/sign-in"), 503)
    provider.is_down = False
    world.clock.advance(FETCH_PAUSE_S)
    assert (await signed_in(browser)).status_code == 200


async def test_redirect_leads_to_the_public_url(world: World, browser: Browser) -> None:
    world.settings = Settings(server=Server(public_url="https://tocsin.example.com"))
    async with listening(world) as url:
        behind = Browser(url, browser.http)
        public = {"Host": "tocsin.example.com"}
        callback = await at_provider(behind, **public)
        [attempt] = behind.cookies
        assert attempt == f"__Host-{ATTEMPT}"
        await behind.send("GET", callback, **public)
        assert list(behind.cookies) == [f"__Host-{COOKIE}"]


async def test_host_of_a_request_is_not_believed(browser: Browser) -> None:
    answer = await browser.send("GET", "/console/sign-in", Host="evil.example")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:tocsin:problem:not-possible")
    assert "server.public_url" in answer.json()["detail"]


async def test_sign_in_needs_a_client(world: World, http: httpx.AsyncClient) -> None:
    async with listening(world) as url:
        for path in ("/console/sign-in", "/console/callback?state=a&code=b"):
            answer = await http.get(url + path)
            assert (answer.status_code, "auth.client_id" in answer.json()["detail"]) == (404, True)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"client_id": "a"}, "iam_url"),
        ({"iam_url": "https://a.example", "client_secret": "b"}, "client_id"),
        ({"scopes": ["profile"]}, "openid"),
        ({"scopes": ["openid profile"]}, "scopes"),
        ({"sign_in_parameters": {"redirect_uri": "https://evil.example"}}, "sign_in_parameters"),
        ({"sign_in_parameters": {"a&state": "b"}}, "sign_in_parameters"),
    ],
)
def test_settings_without_a_needed_field_are_refused(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Auth.model_validate(wrong)


@pytest.mark.parametrize(
    "url", ["tocsin.example.com", "https://a.example/path", "https://u@a.example", "ftp://a.example"]
)
def test_public_url_is_an_origin(url: str) -> None:
    with pytest.raises(ValidationError, match="without a path"):
        Server(public_url=url)


@pytest.mark.parametrize(
    "url",
    [
        "https://traces.example/",
        "javascript:alert('{trace_id}')",
        "https://{trace_id}.example/",
        "https://traces.example/{trace_id}/{trace_id}",
    ],
)
def test_trace_url_names_the_trace(url: str) -> None:
    with pytest.raises(ValidationError, match="names the trace"):
        Server(trace_url=url)
