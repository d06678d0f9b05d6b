"""`tocsin what-if`: the same answer beside the log and over HTTP, as text and as JSON."""

from pathlib import Path

import pytest

from tests.cli.conftest import World
from tests.cli.test_remote import call
from tests.http.conftest import World as ApiWorld
from tests.http.served import served

RULE = '{name: nightly, function: f, schedule: "%s", owner: cli}'
AHEAD = ("--until", "2026-01-08T00:00Z")


@pytest.fixture
def nightly(world: World) -> World:
    assert world.call("jobs", "apply", "-f", world.jobs(f"jobs: [{RULE % '0 3 * * *'}]")).code == 0
    return world


def test_text_names_what_would_come(nightly: World) -> None:
    result = nightly.call("what-if", "-f", nightly.jobs(f"jobs: [{RULE % '0 3,4 * * *'}]"), *AHEAD)
    assert result.code == 0, result.err
    assert result.out.startswith("forecast from 2026-01-01 00:00:00 UTC to 2026-01-08 00:00:00 UTC")
    assert "7 → 14" in result.out
    assert "would have fired: 2026-01-01 04:00:00 UTC, " in result.out
    assert "… (7)" in result.out


def test_json_has_the_report(nightly: World) -> None:
    file = nightly.jobs(f"jobs: [{RULE % '0 3,4 * * *'}]")
    report = nightly.call("what-if", "-f", file, *AHEAD, "-o", "json").json
    assert (report["before"]["fired"], report["after"]["fired"], report["is_forecast"]) == (7, 14, True)
    assert report["jobs"][0]["came"]["first"][0] == "2026-01-01T04:00:00Z"


def test_api_gives_the_same_answer(nightly: World, tmp_path: Path) -> None:
    async def prepare(world: ApiWorld) -> None:
        await world.given(name="nightly", owner="cli")

    file = nightly.jobs(f"jobs: [{RULE % '0 3,4 * * *'}]")
    with served(tmp_path, prepare) as url:
        remote = call(url, "-o", "json", "what-if", "-f", file, *AHEAD)
    assert remote.code == 0, remote.err
    assert remote.json == nightly.call("what-if", "-f", file, *AHEAD, "-o", "json").json


def test_capacity_alone_takes_the_registered_jobs(nightly: World) -> None:
    report = nightly.call("what-if", "--capacity", "default=2", *AHEAD, "-o", "json").json
    assert [(job["job"], job["tried"]) for job in report["jobs"]] == [("nightly", False)]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--capacity", "default"), "invalid-capacity"),
        (("--capacity", "default=many"), "invalid-capacity"),
        (("--capacity", "default=1", "--since", "soon"), "invalid-time"),
        (("--capacity", "default=1", "--since", "40d"), "invalid-query"),
        ((), "definitions-required"),
    ],
)
def test_wrong_option_has_a_code(nightly: World, args: tuple[str, ...], code: str) -> None:
    assert nightly.call("what-if", *args, "-o", "json").error["error_code"] == code
