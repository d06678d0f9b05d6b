"""`GET /v1/jobs`: its filters, pages and visibility."""

from collections.abc import Callable, Sequence
from urllib.parse import quote

import pytest

from tests.http.conftest import World
from tocsin.domain.access import Role
from tocsin.services.calculations import Calculations, Effort, T

DAG = [{"name": "a", "function": "f", "queue": "mail"}, {"name": "b", "function": "f"}]


@pytest.fixture
async def shop(world: World) -> World:
    """Some jobs of a shop; `secret` names its viewers."""
    await world.given(name="bill", tags=("Money", "daily"), description="Sends INVOICES", owner="user:ada")
    await world.given(name="clean", queue="heavy")
    await world.given(name="mail", schedule=None, function=None, dag=DAG)
    await world.given(name="old", enabled=False)
    await world.given(name="once", schedule=None)
    await world.given(name="secret", queue="hidden", tags=("money",), viewers=("user:ada",))
    await world.registry.pause("clean")
    return world


async def _names(world: World, query: str, token: str | None = None) -> Sequence[str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = await world.ask("GET", f"/v1/jobs?{query}", **headers)
    assert answer.status_code == 200, answer.text
    return [job["name"] for job in answer.json()["jobs"]]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("search=invoices", ["bill"]),
        ("search=MONEY", ["bill", "secret"]),
        ("search=LEA", ["clean"]),
        ("search=nothing", []),
        ("state=active", ["bill", "secret"]),
        ("state=paused", ["clean"]),
        ("state=disabled", ["old"]),
        (f"state={quote('on demand')}", ["mail", "once"]),
        ("queue=mail", ["mail"]),
        ("queue=default", ["bill", "mail", "old", "once"]),
        ("tag=money", ["secret"]),
        ("owner=ada", ["bill"]),
        ("search=money&queue=default", ["bill"]),
        ("search=money&state=paused", []),
    ],
)
async def test_filters_select_jobs(shop: World, query: str, names: Sequence[str]) -> None:
    assert await _names(shop, query) == names


@pytest.mark.parametrize("query", ["search=money", "search=secret", "queue=hidden", "state=active", "limit=100"])
async def test_filters_find_no_hidden_job(shop: World, query: str) -> None:
    token = await shop.token("eve", Role.CATALOG)
    assert "secret" not in await _names(shop, query, token)


@pytest.mark.parametrize("query", ["search=", f"search={'x' * 201}", "state=asleep", "stat=active"])
async def test_invalid_filter_is_refused(shop: World, query: str) -> None:
    assert (await shop.ask("GET", f"/v1/jobs?{query}")).status_code == 422


async def test_filtered_list_comes_in_pages(shop: World) -> None:
    first = (await shop.ask("GET", "/v1/jobs?queue=default&limit=2")).json()
    assert ([job["name"] for job in first["jobs"]], first["next"]) == (["bill", "mail"], "mail")
    rest = (await shop.ask("GET", "/v1/jobs?queue=default&limit=2&after=mail")).json()
    assert ([job["name"] for job in rest["jobs"]], rest["next"]) == (["old", "once"], None)


class Exhausted(Calculations):
    """Calculations whose time is over at once."""

    async def run(self, compute: Callable[[Effort], T], /, *, party: str = "") -> T:
        """Run one in place."""
        _ = party
        return compute(Effort(0))


async def test_page_cut_short_names_a_visible_job(world: World) -> None:
    for number in range(4):
        await world.given(name=f"a{number}", viewers=("user:ada",))
    for number in range(2):
        await world.given(name=f"b{number}")
    world.calculations = Exhausted()
    world.client = world.copy()
    token = await world.token("eve", Role.CATALOG)
    pages, query = list[tuple[list[str], str | None]](), "search=1"
    while True:
        answer = (await world.ask("GET", f"/v1/jobs?{query}", Authorization=f"Bearer {token}")).json()
        pages.append(([job["name"] for job in answer["jobs"]], answer["next"]))
        if answer["next"] is None:
            break
        query = f"search=1&after={answer['next']}"
    assert pages == [([], "b0"), (["b1"], None)]
