"""`tocsin silences`: start, list and end."""

from tests.cli.conftest import World
from tests.domain.given import NOON
from tocsin.domain.events import NotificationRaised
from tocsin.domain.notification import Kind


def test_silence_is_started_listed_and_ended(world: World) -> None:
    started = world.call("silences", "start", "--all", "--for", "2h", "--reason", "a move", "-o", "json").json
    assert started["reason"] == "a move"
    page = world.call("silences", "list").out
    assert "all jobs" in page
    assert "a move" in page
    world.call("silences", "end", started["id"])
    assert "no silences" in world.call("silences", "list").out


def test_silence_needs_one_selection(world: World) -> None:
    answer = world.call("silences", "start", "report", "--all", "--for", "2h", "--reason", "r")
    assert "exactly one" in answer.err


def test_notifications_are_listed(world: World) -> None:
    assert "no notifications" in world.call("notifications", "list").out
    fact = NotificationRaised(job="report", id="1", channel="ops", kind=Kind.FAILED, at=NOON, reason="no answer")
    world.do(world.log.append(fact, expect=0))
    assert "no answer" in world.call("notifications", "list").out
    assert world.call("notifications", "list", "--failed", "-o", "json").json == []
