"""The origin of an execution: its event, its trace, and the link to the page of the trace."""

import pytest

from tests.domain.given import ID, admitted
from tests.http.conftest import World
from tocsin.domain.events import EventReference, Failed, validated
from tocsin.domain.trace_context import TraceContext
from tocsin.settings import Server, Settings
from tocsin.testing import START

TRACE = "0af7651916cd43dd8448eb211c80319c"
TOOL = "https://traces.example/trace/{trace_id}?from=tocsin"
LINK = f"https://traces.example/trace/{TRACE}?from=tocsin"


@pytest.mark.parametrize(
    ("is_sampled", "fails", "tool", "link"),
    [
        (True, False, TOOL, LINK),
        (False, False, TOOL, None),
        (False, True, TOOL, LINK),
        (True, False, None, None),
    ],
    ids=["exported", "not exported", "failed", "no tracing tool"],
)
async def test_execution_links_to_its_trace(
    world: World, *, is_sampled: bool, fails: bool, tool: str | None, link: str | None
) -> None:
    world.settings = Settings(server=Server(trace_url=tool))
    world.client = world.copy()
    context = TraceContext(TRACE, "b7ad6b7169203331", is_sampled)
    begun = admitted().changed(traceparent=context.traceparent)
    sequence = await world.log.append(begun, expect=0)
    if fails:
        await world.log.append(
            Failed(job=begun.job, execution_id=ID, scheduled_time=START, trigger="cron", step="main", attempt=1),
            expect=sequence,
        )
    shown = (await world.ask("GET", f"/v1/executions/{ID}")).json()
    assert (shown["trace_id"], shown["trace_url"]) == (TRACE, link)


async def test_execution_without_a_trace_has_no_link(world: World) -> None:
    world.settings = Settings(server=Server(trace_url=TOOL))
    world.client = world.copy()
    await world.log.append(admitted(), expect=0)
    shown = (await world.ask("GET", f"/v1/executions/{ID}")).json()
    assert (shown["trace_id"], shown["trace_url"]) == (None, None)


async def test_execution_names_the_event_that_started_it(world: World) -> None:
    event = EventReference(stream="ORDERS", sequence=1042, subject="orders.new", time=START, hops=2)
    await world.log.append(admitted().changed(trigger="event", event=event), expect=0)
    shown = (await world.ask("GET", f"/v1/executions/{ID}")).json()["event"]
    assert validated(EventReference, shown) == event
