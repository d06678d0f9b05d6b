"""Names are unique within a kind of identity: a user is not the token, or the program, of the same name."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.http.conftest import World
from tests.http.identity_provider import Provider, identity_provider
from tests.plain_http import NO_AUTHORITIES
from tocsin.adapters.http.auth.authentication import Authentication, IdentityProvider
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.domain.access import Role
from tocsin.domain.identity import NO_OWNER
from tocsin.settings import Auth

HIDDEN = {"name": "hidden", "schedule": "@daily", "function": "f", "viewers": ["user:carl"]}


@pytest.fixture
async def provided(world: World) -> AsyncIterator[Provider]:
    """An API with an identity provider beside its own tokens."""
    with identity_provider() as provider:
        async with httpx.AsyncClient(trust_env=False, verify=NO_AUTHORITIES) as http:
            trusted = IdentityProvider(Auth(iam_url=provider.url), http, world.clock)
            world.authenticator = Authentication(Tokens(world.projections, world.clock), trusted, world.clock)
            world.client = world.copy()
            yield provider


async def _statuses(world: World, token: str, *, name: str = "hidden") -> list[int]:
    """Return the answers to a reader and to an author of a hidden job."""
    requests = (("GET", f"/v1/jobs/{name}"), ("POST", f"/v1/jobs/{name}/pause"), ("DELETE", f"/v1/jobs/{name}"))
    return [(await world.ask(*request, Authorization=f"Bearer {token}")).status_code for request in requests]


async def test_user_does_not_own_jobs_of_namesake(world: World, provided: Provider) -> None:
    token = await world.token("ci", Role.AUTHOR)
    user = provided.token("ci", roles=["scheduler-author"])
    assert (await world.ask("POST", "/v1/jobs", HIDDEN, Authorization=f"Bearer {token}")).status_code == 201
    assert await _statuses(world, user) == [404, 404, 404]
    assert await _statuses(world, token) == [200, 200, 204]


@pytest.mark.parametrize("owner", [NO_OWNER, None])
@pytest.mark.parametrize("name", ["cli", "default", "jobs_file", "anonymous"])
async def test_default_owner_is_no_identity(world: World, provided: Provider, owner: str | None, name: str) -> None:
    await world.given(name="hidden", owner=owner, viewers=("user:carl",))
    for token in (provided.token(name, roles=["scheduler-author"]), await world.token(name, Role.AUTHOR)):
        assert await _statuses(world, token) == [404, 404, 404]


async def test_no_user_owns_jobs_of_anonymous_callers(world: World) -> None:
    assert (await world.ask("POST", "/v1/jobs", HIDDEN)).status_code == 201
    assert await _statuses(world, await world.token("anonymous", Role.AUTHOR)) == [404, 404, 404]


async def test_viewers_without_a_kind_are_users(world: World, provided: Provider) -> None:
    await world.given(name="hidden", viewers=("carl", "token:bea"))
    for name, is_user, status in (("carl", True, 200), ("carl", False, 404), ("bea", True, 404), ("bea", False, 200)):
        token = provided.token(name, roles=["scheduler-viewer"]) if is_user else await world.token(name, Role.VIEWER)
        answer = await world.ask("GET", "/v1/jobs/hidden", Authorization=f"Bearer {token}")
        assert answer.status_code == status, (name, is_user)


async def test_idempotency_keys_of_other_kinds_are_apart(world: World, provided: Provider) -> None:
    """A stored answer may hold what only its caller may see."""
    token = await world.token("ci", Role.AUTHOR)
    key = {"Idempotency-Key": "once"}
    first = await world.ask("POST", "/v1/jobs", HIDDEN, Authorization=f"Bearer {token}", **key)
    user = provided.token("ci", roles=["scheduler-author"])
    second = await world.ask("POST", "/v1/jobs", HIDDEN, Authorization=f"Bearer {user}", **key)
    assert (first.status_code, second.status_code) == (201, 403)


async def test_lists_of_an_owner_take_the_kind(world: World) -> None:
    await world.given(name="of-user", owner="ci")
    await world.given(name="of-token", owner="token:ci")
    for owner, names in (("ci", ["of-user"]), ("user:ci", ["of-user"]), ("token:ci", ["of-token"])):
        jobs = (await world.ask("GET", f"/v1/jobs?owner={owner}")).json()["jobs"]
        assert [job["name"] for job in jobs] == names


@pytest.mark.parametrize("field", [{"depends_on": ["hidden"], "schedule": "@daily"}, {"triggers": [{"job": "hidden"}]}])
async def test_no_job_depends_on_a_hidden_job(world: World, field: dict[str, object]) -> None:
    await world.given(name="hidden", viewers=("token:carl",))
    waiting = {"name": "waits", "function": "f", **field}
    author, carl = await world.token("bea", Role.AUTHOR), await world.token("carl", Role.AUTHOR)
    requests = (
        ("POST", "/v1/jobs", waiting),
        ("PUT", "/v1/jobs/waits", waiting),
        ("POST", "/v1/jobs:apply", {"jobs": [waiting]}),
    )
    for method, path, body in requests:
        answer = await world.ask(method, path, body, Authorization=f"Bearer {author}")
        assert (answer.status_code, "cannot depend on 'hidden'" in answer.text) == (403, True)
        assert f"`{next(iter(field))}`" in answer.text
    for method, path, body in requests:
        assert (await world.ask(method, path, body, Authorization=f"Bearer {carl}")).is_success


async def test_circle_names_no_hidden_job(world: World) -> None:
    """The caller may see the job on which its own depends, but not the rest of the circle."""
    await world.given(name="hidden", viewers=("token:carl",), depends_on=("waits",))
    await world.given(name="hidden-too", viewers=("token:carl",), depends_on=("hidden",))
    await world.given(name="between", depends_on=("hidden-too",))
    waiting = {"name": "waits", "schedule": "@daily", "function": "f", "depends_on": ["between"]}
    author, carl = await world.token("bea", Role.AUTHOR), await world.token("carl", Role.AUTHOR)
    requests = (
        ("POST", "/v1/jobs", waiting),
        ("PUT", "/v1/jobs/waits", waiting),
        ("POST", "/v1/jobs:apply", {"jobs": [waiting]}),
        ("POST", "/v1/jobs:apply", {"jobs": [waiting], "dry_run": True}),
        ("POST", "/v1/sql", {"sql": "CREATE JOB waits SCHEDULE = '0 3 * * *' DEPENDS ON between FUNCTION 'f'"}),
    )
    for method, path, body in requests:
        answer = await world.ask(method, path, body, Authorization=f"Bearer {author}")
        assert answer.status_code == 422
        assert "in a circle: " in answer.text
        assert "`between`" in answer.text
        assert "`hidden" not in answer.text
        assert "`hidden-too`" in (await world.ask(method, path, body, Authorization=f"Bearer {carl}")).text
