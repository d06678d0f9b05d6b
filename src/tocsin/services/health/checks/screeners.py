"""Check what keeps the headers of users outside away from the streams."""

from typing import Final

from ....subjects import OUTPUT_STREAMS, Stream
from ..findings import CheckContext, Finding, bad, ok, warn
from .server import version_of

_OUTSIDE: Final = (Stream.INPUTS, Stream.REPORTS, *OUTPUT_STREAMS, Stream.MQ)
"""The streams that store what users outside publish."""
_SWITCH_ON: Final = "set `screener.enabled`, run the stage, and reload the accounts, as the guide to permissions says"


async def headers(context: CheckContext) -> Finding | None:
    """Report streams that a header of a user outside can stop (`unscreened-streams`)."""
    inspection, streams = context.target.inspection, context.status.streams
    if context.target.settings.screener.enabled or version_of(context) < inspection.versions.stops_at_headers:
        return None
    states = [streams.get(inspection.stream_name(stream)) for stream in _OUTSIDE]
    replicated = [state.name for state in states if state is not None and state.replicas > 1]
    if not replicated:
        return None
    return warn(
        "unscreened-streams",
        f"{', '.join(replicated)}: several servers keep what users outside publish, with their headers",
        means="one message with a wrong header stops such a stream for good, on this version of nats-server",
        do=_SWITCH_ON,
        streams=list(replicated),
    )


async def screeners(context: CheckContext) -> Finding | None:
    """Report users outside whose messages no screener hears (`screener-missing`)."""
    settings = context.target.settings
    if not settings.screener.enabled:
        return None
    if not (unheard := await context.target.inspection.unheard(settings.outsiders)):
        return ok("screener-missing", "a screener hears every user outside")
    return bad(
        "screener-missing",
        f"no screener hears {', '.join(unheard)}",
        means="their messages are refused: no request of theirs is accepted, and no report of theirs ends a step",
        do="run `tocsin run screener` with the settings from which the accounts were made",
        users=list(unheard),
    )
