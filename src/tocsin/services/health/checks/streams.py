"""Check what `tocsin init` makes: streams, buckets, durables and the installation's key."""

from typing import Final

from ....engine.broken_keys import Broken
from ....ports.server_inspection import Drift, StreamState
from ....subjects import INPUT_STREAMS, OUTPUT_STREAMS, Bucket, Stream, stream_of
from ..findings import CheckContext, Finding, Level, OverdueKind, bad, ok, warn
from .server import version_of

INIT: Final = "run `tocsin init`: it puts this right and changes nothing else"
_AT_RISK: Final = "raise the limits in the settings, or run `tocsin init --drop-messages`: {loss}"


async def unanswered(context: CheckContext) -> list[Finding]:
    """Report streams and buckets that do not answer (`not-answered`)."""
    return [
        bad(
            "not-answered",
            f"{part}: {reason}",
            means="everything that needs it waits",
            do="check the servers: a stream answers while more than half of the servers that keep it are up",
        )
        for part, reason in context.status.troubles.items()
        if part != "history"
    ]


async def streams(context: CheckContext) -> list[Finding]:
    """Report streams that are missing or differ (`stream-missing`, `stream-drift`, `stream-unchangeable`)."""
    findings = []
    for name, state in context.status.streams.items():
        if state is None:
            findings.append(bad("stream-missing", f"there is no stream {name}", means="nothing works", do=INIT))
        elif state.unchangeable:
            # nats-server makes no backup of a stream in memory.
            kept = "storage" not in state.unchangeable
            restore = "restore a backup of the installation into an empty NATS, or " if kept else ""
            findings.append(
                bad(
                    "stream-unchangeable",
                    f"stream {name} cannot be changed: {_text(state.unchangeable)}",
                    means="`tocsin init` refuses it",
                    do=restore + "choose another root",
                    stream=name,
                )
            )
        elif state.drift.keys() == {"compression"}:
            text = f"stream {name} is configured otherwise: {_text(state.drift)}"
            findings.append(warn("stream-drift", text, means="the stream takes more disk", do=INIT, stream=name))
        elif state.drift:
            findings.append(
                bad(
                    "stream-drift",
                    f"stream {name} is configured otherwise: {_text(state.drift)}",
                    means="limits delete waiting work; stages rely on the other fields too",
                    do=INIT if state.loss is None else _AT_RISK.format(loss=state.loss),
                    stream=name,
                )
            )
    return findings or [ok("stream-drift", f"{len(context.status.streams)} streams are as they should be")]


async def room(context: CheckContext) -> list[Finding]:
    """Report half full streams of inputs, of the MQ bridge and of webhooks (`stream-filling`)."""
    inspection = context.target.inspection
    names = [*map(inspection.stream_name, sorted({*INPUT_STREAMS, Stream.MQ})), inspection.webhook_stream_name]
    states = [state for name in names if (state := context.status.streams.get(name)) is not None]
    full = [
        (state.name, f"{held:,} of at most {limit:,} {unit}", setting)
        for state in states
        for held, limit, unit, setting in (
            (state.bytes, state.max_bytes, "bytes", "max_input_bytes"),
            (state.messages, state.max_messages, "messages", "max_outside_messages"),
        )
        if 0 < limit <= 2 * held
    ]
    return [
        warn(
            "stream-filling",
            f"stream {name} holds {held}",
            means="a full stream refuses messages: reports wait at their workers, and requests fail",
            do="check that the archiver runs, that no durable is behind, and that no client floods the stream "
            f"(`nats server report connections --sort in-msgs`), or raise `archive.{setting}`",
            stream=name,
        )
        for name, held, setting in full
    ] or [ok("stream-filling", "no stream of inputs is half full")]


async def replicas(context: CheckContext) -> list[Finding]:
    """Report missing replicas (`replicas`, `replica-behind`, `no-stream-leader`)."""
    configured = context.target.settings.replicas
    states = [state for state in context.status.streams.values() if state is not None]
    findings = [finding for state in states if (finding := _cluster(state)) is not None]
    deviating = [state for state in states if configured is not None and state.replicas != configured]
    single = [state for state in states if state.replicas == 1]
    if deviating:
        listing = ", ".join(f"{state.name} by {state.replicas}" for state in deviating)
        findings.append(
            bad(
                "replicas",
                f"the settings ask for {configured} replicas, and {listing}",
                means="data is lost with a server",
                do=INIT,
            )
        )
    elif single:
        findings.append(
            warn(
                "replicas",
                f"one server alone keeps {len(single)} of {len(states)} streams",
                means="while it is down nothing is decided, and data that its disk loses is lost",
                do="run three servers as a cluster, set `replicas: 3`, and run `tocsin init`",
            )
        )
    elif states:
        findings.append(ok("replicas", f"each stream is kept by {states[0].replicas} servers"))
    return findings


async def durables(context: CheckContext) -> list[Finding]:
    """Report durables that are missing or configured otherwise (`durable-missing`, `durable-drift`)."""
    specs = context.target.durables
    states = {(durable.state.stream, durable.state.name): durable.state for durable in context.status.durables}
    responsive = {stream for stream, _ in states}
    findings = []
    for spec in specs:
        stream = context.target.inspection.stream_name(spec.stream)
        state = states.get((stream, spec.name))
        if state is None:
            if stream in responsive or context.status.streams.get(stream):
                findings.append(
                    bad(
                        "durable-missing",
                        f"there is no durable {spec.name} on {stream}",
                        means="its readers receive nothing",
                        do=INIT,
                        durable=spec.name,
                    )
                )
        elif state.drift:
            findings.append(
                warn(
                    "durable-drift",
                    f"durable {spec.name} on {stream} is configured otherwise: {_text(state.drift)}",
                    means="its stage may receive too little, or redeliveries too early",
                    do=INIT,
                    durable=spec.name,
                )
            )
    return findings or [ok("durable-drift", f"{len(specs)} durables are as they should be")]


async def key(context: CheckContext) -> Finding | None:
    """Report a missing installation key (`key-missing`)."""
    bucket = context.target.inspection.bucket_stream_name(Bucket.INSTALLATION)
    if context.status.streams.get(bucket) is None:
        return None  # another finding reports that the bucket does not exist
    if await context.target.has_key():
        return ok("key-missing", "the key that verifies reports exists")
    return bad(
        "key-missing",
        "the key that verifies reports is gone",
        means="no stage starts, and with a new key the reports of tasks that are out are refused",
        do="restore the bucket from a backup; without a backup, `tocsin init` makes a new key",
    )


async def foreign(context: CheckContext) -> list[Finding]:
    """Report messages that no stage stored (`foreign-messages`)."""
    return _FOREIGN.report([report.place for report in context.status.foreign if not report.is_unreadable])


async def unreadable(context: CheckContext) -> list[Finding]:
    """Report events that processes could not read or apply (`event-unreadable`)."""
    places = dict.fromkeys(report.place for report in context.status.foreign if report.is_unreadable)
    broken = (state.since[0] for state in (await context.fold()).states.values() if isinstance(state, Broken))
    places |= {f"{event.subject} ({stream_of(event.subject)} {event.number})": None for event in broken}
    return UNREADABLE.report([*places])


_FOREIGN: Final = OverdueKind(
    code="foreign-messages",
    text="messages in the streams of decisions are from no stage",
    means="readers skip them and jobs go on, but a user of the account stores messages past the stages",
    do="find the user in the server's log and change its password; then run `tocsin repair`",
    details="messages",
    all_well="no process met a message that no stage stored",
    level=Level.WARN,
)


UNREADABLE: Final = OverdueKind(
    code="event-unreadable",
    text="events cannot be read by this version",
    means="decisions on their jobs and executions wait, up to a day; all others go on",
    do="upgrade all processes to the version that stored them; if no version reads them, see `tocsin repair --unreadable --dry-run`",
    details="messages",
    all_well="no process met an event that it cannot read",
)


def _cluster(stream: StreamState) -> Finding | None:
    if stream.replicas > 1 and stream.leader is None:
        return bad(
            "no-stream-leader",
            f"stream {stream.name} has no leader",
            means="it stores nothing until a leader is elected",
            do="check the servers: more than half of those that keep it must be up",
        )
    late = [peer for peer in stream.peers if peer.is_offline or not peer.is_current]
    if not late:
        return None
    peers = ", ".join(f"{p.name} ({'offline' if p.is_offline else f'{p.lag} behind'})" for p in late)
    return warn(
        "replica-behind",
        f"stream {stream.name}: {peers}",
        means="if one more server fails, nothing is stored",
        do="bring the server back, or give it time to catch up",
        stream=stream.name,
    )


def _text(drift: Drift) -> str:
    return ", ".join(f"{field} is {actual} instead of {required}" for field, (actual, required) in drift.items())


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
