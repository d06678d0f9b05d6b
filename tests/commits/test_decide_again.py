"""A fresh process decides each commit of a log again, from what the log had before it (`tocsin audit --decide-again`)."""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.commits.processes import NAMES, Installation, bound
from tests.commits.scripts import Commits, play, script
from tests.commits.server import server
from tocsin.domain.commit import Commit
from tocsin.domain.events import Message, Recorded
from tocsin.services.audit.decide_again import DecideAgain, Difference, Input
from tocsin.subjects import Stream


async def played(seed: int) -> Installation:
    chance = random.Random(seed)  # noqa: S311
    groups = [NAMES] if seed % 2 else [[name] for name in chance.sample(NAMES, len(NAMES))]
    engine = Commits(groups, cut=seed % 3 == 0)
    await play(script(seed), engine)
    return engine._installation


def differences(installation: Installation, commits: Sequence[Commit], *, has_inputs: bool = True) -> list[Difference]:
    again = DecideAgain(bound, b"")
    return [one for commit in commits for one in again.take(commit, _inputs(installation, again, commit, has_inputs))]


def _inputs(
    installation: Installation,
    again: DecideAgain,
    commit: Commit,
    has_inputs: bool,  # noqa: FBT001
) -> dict[Input, list[Recorded[Message]]]:
    wanted = again.inputs_of(commit) if has_inputs else ()
    return {(source, place): [installation.inputs[Stream(source)][place - 1]] for source, place in wanted}


@pytest.mark.parametrize("seed", range(12))
async def test_fresh_process_decides_the_same(seed: int) -> None:
    installation = await played(seed)
    assert differences(installation, await installation.commits()) == []


async def test_decision_missing_from_a_fresh_process_is_named() -> None:
    installation = await played(1)
    commits = await installation.commits()
    events = [(number, event) for commit in commits for number, event in enumerate(commit.events, commit.first)]
    number, changed = next((n, e) for n, e in events if e.subject.startswith("cron.triggered."))
    body = bytes(changed.body).replace(b'"run_count":', b'"run_count":7')
    other = msgspec.structs.replace(changed, body=msgspec.Raw(body))
    forged = [
        msgspec.structs.replace(commit, events=tuple(other if event is changed else event for event in commit.events))
        for commit in commits
    ]
    [first, *_] = differences(installation, forged)
    assert (first.stage, first.cause) == ("planner", changed.cause)
    assert number - 3 <= first.number <= number  # the first event of the decision


async def test_decision_on_nothing_is_named() -> None:
    installation = await played(1)
    commits = await installation.commits()
    claimed = next(event for commit in commits for event in commit.events if event.cause.startswith("@2"))
    other = msgspec.structs.replace(claimed, cause="@2026-01-01T00:00:00.000001Z")
    forged = [
        msgspec.structs.replace(commit, events=tuple(other if event is claimed else event for event in commit.events))
        for commit in commits
    ]
    [first, *_] = differences(installation, forged)
    assert first.reason == "its stage has no such input, event or deadline"


async def test_inputs_that_are_gone_are_no_difference() -> None:
    installation = await played(3)
    assert differences(installation, await installation.commits(), has_inputs=False) == []


async def test_audit_decides_the_log_of_a_server_again(nats_url: str, tmp_path: Path) -> None:
    async with server(nats_url, tmp_path) as given:
        tocsin = given.tocsin
        given.start()
        await tocsin.ready()
        await given.define(name="tick", function="f", schedule="* * * * * *", overlap_policy="allow")

        async def have_run() -> bool:
            return sum(".admitted" in subject for subject in await given.subjects()) >= 3

        await tocsin.until(have_run)
        code, report = await tocsin.call("audit", "--decide-again")
        assert (code, report["violations"]) == (0, [])
        code, _ = await tocsin.call("audit", "--decide-again", "--job", "tick")
        assert code == 2
