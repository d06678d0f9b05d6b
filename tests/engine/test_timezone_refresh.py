"""New time-zone data is taken over without a restart, and what moves is reported."""

from tests.stages.world import World
from tocsin.domain.definition import STORED, JobDefinition
from tocsin.domain.ledger import Timetable
from tocsin.domain.schedule import timezone_database
from tocsin.engine.timezone_refresh import TimezoneWatch, report_of
from tocsin.subjects import TIMEZONE_REQUEST, Bucket


async def test_unreadable_schedule_is_reported_with_the_reason(world: World) -> None:
    fields = {"name": "nine", "schedule": "0 9 * * *", "timezone": "Mars/Olympus", "function": "f"}
    timetable = Timetable.of(JobDefinition.model_validate(fields, context=STORED))
    data = timezone_database()
    [moved] = (await report_of([("nine", timetable)], data, data, world.clock.now())).moved
    assert (moved.job, moved.removed, moved.added) == ("nine", (), ())
    assert moved.error is not None
    assert "Mars/Olympus" in moved.error


async def test_each_request_is_followed_once(world: World) -> None:
    await world.projections.put(Bucket.TIMEZONES, TIMEZONE_REQUEST, b"{}")
    watch = TimezoneWatch(world.projections, world.clock)
    await watch.run_once()
    before = timezone_database()
    await watch.run_once()
    assert timezone_database() is before  # a request from before this process began
    await world.projections.put(Bucket.TIMEZONES, TIMEZONE_REQUEST, b"{}")
    await watch.run_once()
    after = timezone_database()
    assert after is not before
    await watch.run_once()
    assert timezone_database() is after
