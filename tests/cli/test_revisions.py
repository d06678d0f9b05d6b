"""`tocsin jobs history`, `jobs diff` of revisions, and `jobs rollback`, beside the log and over HTTP."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.cli.conftest import CallResult
from tests.cli.conftest import World as LocalWorld
from tests.cli.test_remote import call
from tests.http.conftest import World
from tests.http.served import served
from tocsin.adapters.http.client import HttpOperator
from tocsin.domain.definition import JobDefinition
from tocsin.services.jobs import Registry
from tocsin.services.operator import Operator

Call: TypeAlias = Callable[..., CallResult]


async def prepare(registry: Registry) -> None:
    """A job with an edit and a pause."""
    for schedule in ("0 3 * * *", "0 4 * * *"):
        await registry.define(JobDefinition(name="nightly", schedule=schedule, function="f"))
    await registry.pause("nightly", reason="too loud")


@pytest.fixture(params=["local", "remote"])
def tocsin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Call]:
    if request.param == "local":
        world: LocalWorld = request.getfixturevalue("world")
        world.do(prepare(world.registry))
        yield world.call
        return

    async def prepared(world: World) -> None:
        await prepare(world.registry)

    with served(tmp_path, prepared) as url:
        yield lambda *args: call(url, *args)


def test_history_lists_the_changes(tocsin: Call) -> None:
    rows = tocsin("jobs", "history", "nightly", "-o", "json").json
    assert [(row["sequence"], row["kind"], row["changed"], row["reason"], row["is_current"]) for row in rows] == [
        (3, "paused", [], "too loud", False),
        (2, "defined", ["schedule"], None, True),
        (1, "defined", [], None, False),
    ]
    assert len(tocsin("jobs", "history", "nightly", "-n", "1", "-o", "json").json) == 1
    assert "in force" in tocsin("jobs", "history", "nightly").out


@pytest.mark.parametrize("revisions", [(), ("1",), ("1", "2")])
def test_diff_compares_revisions(tocsin: Call, revisions: tuple[str, ...]) -> None:
    result = tocsin("jobs", "diff", "nightly", *revisions)
    assert result.code == 1
    assert [line for line in result.out.splitlines() if line[1:9] == "schedule"] == [
        "-schedule: 0 3 * * *",
        "+schedule: 0 4 * * *",
    ]


def test_equal_revisions_have_no_difference(tocsin: Call) -> None:
    result = tocsin("jobs", "diff", "nightly", "2", "-o", "json")
    assert (result.code, result.json) == (0, {"job": "nightly", "diff": "", "changed": False})


def test_rollback_registers_the_earlier_definition(tocsin: Call) -> None:
    assert "would roll back nightly to revision 1" in tocsin("jobs", "rollback", "nightly", "1", "--dry-run").out
    assert len(tocsin("jobs", "history", "nightly", "-o", "json").json) == 3
    result = tocsin("jobs", "rollback", "nightly", "1", "--reason", "it was right")
    assert (result.code, "rolled back nightly to revision 1" in result.out) == (0, True)
    [newest, *_] = tocsin("jobs", "history", "nightly", "-o", "json").json
    assert (newest["changed"], newest["reason"], newest["is_current"]) == (["schedule"], "it was right", True)
    assert tocsin("jobs", "rollback", "nightly", "1", "-o", "json").json["changed"] is False


def test_rollback_keeps_a_change_of_another(tocsin: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Operator, HttpOperator):
        monkeypatch.setattr(kind, "roll_back", after_a_change(kind.roll_back))
    result = tocsin("jobs", "rollback", "nightly", "1", "-o", "json")
    assert (result.code != 0, result.error["error_code"]) == (True, "conflict")
    [newest, *_] = tocsin("jobs", "history", "nightly", "-o", "json").json
    assert newest["kind"] == "resumed"


def after_a_change(roll_back: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, before which another operator resumes the job."""

    async def late(self: Any, job: str, revision: int, **more: Any) -> None:  # noqa: ANN401 - of either kind
        await self.resume(job)
        await roll_back(self, job, revision, **more)

    return late


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("jobs", "history", "nightlx"), "job-not-found"),
        (("jobs", "diff", "nightly", "99"), "not-found"),
        (("jobs", "diff", "nightly", "3"), "not-found"),
        (("jobs", "rollback", "nightly", "99"), "not-found"),
        (("jobs", "rollback", "nightlx", "1"), "job-not-found"),
    ],
)
def test_unknown_revision_is_refused(tocsin: Call, args: tuple[str, ...], code: str) -> None:
    assert tocsin(*args, "-o", "json").error["error_code"] == code
