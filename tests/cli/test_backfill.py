"""`tocsin backfill`: a dry run, a confirmation, and a single effect."""

import pytest

from tests.cli.conftest import World
from tests.domain.given import JOB
from tocsin.domain.events import Trigger

SPAN = ("--from", "2026-01-05", "--to", "2026-01-08")


@pytest.fixture
def nightly(world: World) -> World:
    path = world.jobs(f'jobs: [{{ name: {JOB}, function: f, schedule: "0 2 * * *", timezone: America/New_York }}]')
    assert world.call("jobs", "apply", "-f", path).code == 0
    return world


def test_dry_run_counts_in_the_jobs_zone(nightly: World) -> None:
    result = nightly.call("backfill", JOB, *SPAN, "--dry-run")
    assert result.code == 0
    first, counts, chosen = result.out.splitlines()
    assert first == f"{JOB}  backfill 20260105T050000-20260108T050000"
    assert counts == "3 occurrences: 0 fired, 0 did not fire, 3 unknown"
    assert chosen.startswith("3 to run: 2026-01-05 07:00:00 UTC, ")
    assert nightly.recorded("trigger.>") == []


@pytest.mark.usefixtures("other_zone_table")
def test_times_are_in_the_zones_of_schedules(nightly: World) -> None:
    """The machine's table of zones differs, and the schedule does not follow it."""
    result = nightly.call("backfill", JOB, "--from", "2026-01-05T02:00", "--to", "2026-01-05T02:01", "--dry-run")
    assert result.out.splitlines()[2].startswith("1 to run: 2026-01-05 07:00:00 UTC")


def test_missing_terminal_exits_2_and_names_the_option(nightly: World) -> None:
    result = nightly.call("backfill", JOB, *SPAN)
    assert (result.code, JOB in result.err, "--yes" in result.err) == (2, True, True)
    assert nightly.call("backfill", JOB, *SPAN, "-o", "json").error["error_code"] == "confirmation-required"
    for times in (("--from", "soon"), ("--from", "2026-01-05", "--to", "never")):
        assert nightly.call("backfill", JOB, *times, "-o", "json").error["error_code"] == "invalid-time"
    assert nightly.call("backfill", "nobody", *SPAN, "-o", "json").failure == (3, "job-not-found")
    assert nightly.recorded("trigger.>") == []


def test_each_occurrence_is_requested_by_name(nightly: World) -> None:
    one = ("--from", "2026-01-05", "--to", "2026-01-06", "--name", "repair", "--reason", "lost")
    result = nightly.call("backfill", JOB, *one, "--yes")
    assert (result.code, result.out.splitlines()[-1]) == (0, f"requested 1 execution of {JOB}")
    [recorded] = nightly.recorded("trigger.>")
    assert isinstance(recorded.message, Trigger)
    assert (recorded.message.backfill, recorded.message.reason, recorded.message.trigger) == (
        "repair",
        "lost",
        "backfill",
    )
    answered = nightly.call("backfill", JOB, *one, "--yes", "-o", "json").json
    assert (answered["requested"], answered["instants"]) == (1, ["2026-01-05T07:00:00Z"])


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("nobody", *SPAN), 3, "job 'nobody' does not exist"),
        ((JOB, "--from", "2026-01-08", "--to", "2026-01-05"), 1, "the end must be later than the start"),
        ((JOB, "--from", "2026-01-08", "--to", "2999-01-05"), 1, "that is in the future"),
        ((JOB, "--from", "soon"), 2, "--from is 'soon': write an ISO date and time"),
        ((JOB, *SPAN, "--rate", "fast"), 2, "--rate is 'fast': write 10/s, 100/m or 20/h"),
        ((JOB, *SPAN, "--order", "random"), 2, "'random' is not one of 'oldest', 'newest'"),
    ],
)
def test_what_cannot_be_says_why(nightly: World, args: tuple[str, ...], code: int, text: str) -> None:
    result = nightly.call("backfill", *args, "--dry-run")
    assert (result.code, text in result.err) == (code, True), result.err


def test_backfill_is_one_command(nightly: World) -> None:
    assert nightly.call("jobs", "backfill", JOB, *SPAN, "--dry-run").code == 2
    assert nightly.recorded("trigger.>") == []
