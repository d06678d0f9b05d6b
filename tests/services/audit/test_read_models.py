"""The history and the KV projections are compared with the facts (I8), and each difference is noticed."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from typing_extensions import override

from tests.domain.given import NOON
from tests.services.audit.test_defects import happened
from tests.stored_events import StoredEvents
from tocsin import subjects
from tocsin.adapters.sql.history import open_history
from tocsin.domain import ledger
from tocsin.domain.events import PolicyDefined, Recorded
from tocsin.domain.job_record import Registration
from tocsin.ports import ExecutionRow
from tocsin.services.audit import Comparison, ProjectionReader
from tocsin.subjects import RECORDED, Bucket, Stream
from tocsin.testing import InMemoryProjections, ManualClock


@dataclass
class Shown:
    """The content of the read models, which a test changes."""

    rows: dict[str, ExecutionRow] = field(default_factory=dict)
    definitions: dict[str, bytes] = field(default_factory=dict)
    locks: dict[str, bytes] = field(default_factory=dict)
    upto: int = 0


@pytest.fixture(scope="module")
def everything() -> StoredEvents:
    return asyncio.run(happened())


@pytest.fixture(scope="module")
def shown(everything: StoredEvents, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """The real history of the events, and the expected projections."""

    async def record(path: Path) -> Shown:
        kinds = tuple(filter_.split(".")[0] for filter_ in RECORDED[Stream.LOG])
        facts = [recorded for recorded in everything.log if recorded.subject.startswith(kinds)]
        async with open_history(f"sqlite:///{path}") as history:
            await history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
            rows = {row.execution_id: row for row in (await history.executions()).rows}
            assert len(rows) == await history.count()
        return Shown(rows, definitions(everything), upto=facts[-1].sequence)

    return asyncio.run(record(tmp_path_factory.mktemp("history") / "history.db"))


def definitions(everything: StoredEvents) -> dict[str, bytes]:
    """The expected content of KV `definitions`."""
    states = {job: ledger.fold(facts) for job, facts in everything.jobs.items()}
    found = {subjects.token(job): Registration.of(state) for job, state in states.items()}
    return {key: registration.encode() for key, registration in found.items() if registration is not None}


class StubHistory:
    """The two queries of a comparison, with scripted answers."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    async def offset(self, _: Stream) -> int:
        return self._shown.upto

    async def execution(self, execution_id: str) -> ExecutionRow | None:
        return self._shown.rows.get(execution_id)

    async def count(self) -> int:
        return len(self._shown.rows)


async def compared(everything: StoredEvents, shown: Shown, history: StubHistory | None = None) -> Comparison:
    clock = ManualClock()
    projections = InMemoryProjections(clock)
    for bucket, values in ((Bucket.DEFINITIONS, shown.definitions), (Bucket.LOCKS, shown.locks)):
        for key, value in values.items():
            await projections.put(bucket, key, value)
    comparing = ProjectionReader(history or StubHistory(shown), projections, clock)
    await comparing.begin()
    for recorded in (*everything.ledger, *everything.log):
        await comparing.take(recorded)
    finishing = asyncio.create_task(comparing.finish())
    while not finishing.done():
        await clock.run(1)
    return finishing.result()


class GrowingHistory(StubHistory):
    """A history that records one more execution before each read."""

    def __init__(self, shown: Shown) -> None:
        super().__init__(shown)
        self._reads = 0

    @override
    async def count(self) -> int:
        self._reads += 1
        return await super().count() + self._reads - 1

    @override
    async def offset(self, stream: Stream) -> int:
        self._reads += 1
        return await super().offset(stream)


async def test_execution_recorded_during_the_audit_is_no_remark(everything: StoredEvents, shown: Shown) -> None:
    assert (await compared(everything, shown, GrowingHistory(shown))).remarks == ()


async def test_matching_read_model_is_no_violation(everything: StoredEvents, shown: Shown) -> None:
    comparison = await compared(everything, shown)
    assert (comparison.violations, comparison.remarks) == ((), ())


def row(shown: Shown, **fields: object) -> Shown:
    """The first row says something else."""
    first = next(row for row in shown.rows.values() if row.status == "completed")
    return replace(shown, rows={**shown.rows, first.execution_id: replace(first, **fields)})  # type: ignore[arg-type]


DEFECTS: Mapping[str, tuple[Callable[[Shown], Shown], str]] = {
    "a row is missing": (lambda s: replace(s, rows=dict([*s.rows.items()][1:])), "the history does not show it"),
    "a row has another status": (
        lambda s: row(s, status="failed"),
        "shows `status` as failed, and its facts say completed",
    ),
    "a row has another error": (lambda s: row(s, error="oops"), "shows `error` as oops"),
    "a row is of another job": (lambda s: row(s, job_name="else"), "shows it as one of else"),
    "a row has not ended": (lambda s: row(s, completed_at=None), "shows `completed_at` as None"),
    "a job is shown that is none": (
        lambda s: replace(s, definitions={**s.definitions, "ghost": b"{}"}),
        "KV `definitions` shows it, but the job does not exist",
    ),
}


@pytest.mark.parametrize(("defect", "expected"), DEFECTS.values(), ids=DEFECTS)
async def test_each_difference_is_noticed(
    everything: StoredEvents, shown: Shown, defect: Callable[[Shown], Shown], expected: str
) -> None:
    found = (await compared(everything, defect(shown))).violations
    assert [violation.invariant for violation in found] == ["I8"]
    assert expected in found[0].reason


@pytest.mark.parametrize("was_off", [False, True])
async def test_execution_kept_out_by_policy_is_remarked(
    everything: StoredEvents,
    shown: Shown,
    was_off: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    completed = next(row for row in shown.rows.values() if row.status == "completed")
    partial = replace(completed, definition=None, worker=None)
    rows = {id_: row for id_, row in shown.rows.items() if row.status != "failed"} | {completed.execution_id: partial}
    policy = PolicyDefined(enable_job_history=not was_off)
    facts = [*everything.ledger, Recorded(policy, "policy.scheduler.policy-defined", 10_000, NOON)]
    found = await compared(replace(everything, ledger=facts), replace(shown, rows=rows))
    assert bool(found.violations) is not was_off
    assert any("a policy switched it off" in remark for remark in found.remarks) is was_off


async def test_missing_or_different_job_is_reported(everything: StoredEvents, shown: Shown) -> None:
    before = replace(everything, ledger=[r for r in everything.ledger if not r.subject.endswith(".deleted")])
    right = replace(shown, definitions=definitions(before))
    assert (await compared(before, right)).violations == ()
    reasons = [violation.reason for violation in (await compared(before, shown)).violations]
    assert reasons == ["KV `definitions` does not show it"] * len(before.jobs)
    wrong = replace(right, definitions={**right.definitions, "etl": b"{}"})
    [violation] = (await compared(before, wrong)).violations
    assert violation.reason == "KV `definitions` shows it otherwise than its ledger says"


async def test_a_lock_that_is_still_shown_is_noticed(everything: StoredEvents, shown: Shown) -> None:
    [over, *_] = (execution_id for execution_id, end in everything.ends.items() if end.message.job == "locked")
    stale = replace(shown, locks={"locked": json.dumps({"execution_id": over}).encode()})
    [violation] = (await compared(everything, stale)).violations
    assert violation.reason == f"KV `locks` shows {over} as its holder, which is over"


async def test_rows_ahead_of_the_history_are_not_compared(everything: StoredEvents, shown: Shown) -> None:
    behind = replace(shown, rows={}, upto=0)
    assert (await compared(everything, behind)).violations == ()


async def test_rows_beyond_the_facts_are_remarked(everything: StoredEvents, shown: Shown) -> None:
    rows = {**shown.rows, "old": next(iter(shown.rows.values()))}
    assert (await compared(everything, replace(shown, rows=rows))).remarks == (
        "the history holds 1 execution that these facts do not",
    )
