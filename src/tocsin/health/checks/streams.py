"""What `tocsin init` makes: streams, buckets, durables, the key, and the servers that keep them."""

from collections.abc import Mapping
from typing import Final

from ...adapters.nats.admin.desired_state import archive_config, bucket_config, consumer_config, stream_config
from ...adapters.nats.admin.inspection import StreamState
from ...adapters.nats.admin.provision_report import differences
from ...adapters.nats.client.connection import Json
from ...bootstrap import STAGES, bridged_queues, compose, durables_of, is_set_up
from ...subjects import Bucket, Stream
from ..context import CheckContext
from ..finding import Finding, bad, ok, warn

ANSWER: Final = 3.0
"""Seconds that the cluster may take to say whether the key is there."""
INIT: Final = "run `tocsin init`: it puts this right and changes nothing else"


async def unanswered(look: CheckContext) -> list[Finding]:
    """`not-answered`: a stream without a leader, a bucket that is away."""
    return [
        bad(
            "not-answered",
            f"{what}: {reason}",
            means="whatever needs it waits",
            do="look at the servers: a stream answers while more than half of those that keep it are up",
        )
        for what, reason in look.status.troubles.items()
        if what != "history"
    ]


async def streams(look: CheckContext) -> list[Finding]:
    """`stream-missing`, `stream-drift`."""
    findings = []
    for name, wanted in _wanted(look).items():
        if name not in look.status.streams:
            continue  # it did not answer
        found = look.status.streams[name]
        if found is None:
            findings.append(bad("stream-missing", f"there is no stream {name}", means="nothing works", do=INIT))
        elif changed := differences(found.config, wanted):
            findings.append(
                bad(
                    "stream-drift",
                    f"stream {name} is configured otherwise: {_told(changed)}",
                    means="limits delete timers and work that waits; the rest is relied on too",
                    do=INIT,
                    stream=name,
                )
            )
    return findings or [ok("stream-drift", f"{len(look.status.streams)} streams are as they should be")]


async def replicas(look: CheckContext) -> list[Finding]:
    """`replicas`, `replica-behind`, `no-stream-leader`."""
    wanted, found = look.installation.settings.replicas, [s for s in look.status.streams.values() if s is not None]
    findings = [finding for stream in found for finding in _cluster(stream)]
    others = [s for s in found if wanted is not None and s.replicas != wanted]
    single = [s for s in found if s.replicas == 1]
    if others:
        kept = ", ".join(f"{s.name} by {s.replicas}" for s in others)
        findings.append(
            bad(
                "replicas",
                f"the settings ask for {wanted} replicas, and {kept}",
                means="what is lost with a server",
                do=INIT,
            )
        )
    elif single:
        findings.append(
            warn(
                "replicas",
                f"one server alone keeps {len(single)} of {len(found)} streams",
                means="while it is away nothing is decided, and what its disk loses is lost",
                do="run three servers as a cluster, set `replicas: 3`, and run `tocsin init`",
            )
        )
    elif found:
        findings.append(ok("replicas", f"each stream is kept by {found[0].replicas} servers"))
    return findings


async def durables(look: CheckContext) -> list[Finding]:
    """`durable-missing`, `durable-drift`."""
    names = look.installation.names
    specs = durables_of(look.installation.settings, compose(look.installation, STAGES, key=b""))
    there = {(durable.state.stream, durable.state.name): durable.state for durable in look.status.durables}
    asked = {durable.state.stream for durable in look.status.durables}
    findings = []
    for spec in specs:
        stream = names.stream(spec.stream)
        state = there.get((stream, spec.name))
        if state is None:
            if stream in asked or look.status.streams.get(stream):
                findings.append(
                    bad(
                        "durable-missing",
                        f"there is no durable {spec.name} on {stream}",
                        means="whoever reads it gets nothing",
                        do=INIT,
                        durable=spec.name,
                    )
                )
        elif changed := differences(state.config, consumer_config(spec, names)):
            findings.append(
                warn(
                    "durable-drift",
                    f"durable {spec.name} on {stream} is configured otherwise: {_told(changed)}",
                    means="its stage may see too little, or again too early",
                    do=INIT,
                    durable=spec.name,
                )
            )
    return findings or [ok("durable-drift", f"{len(specs)} durables are as they should be")]


async def key(look: CheckContext) -> list[Finding]:
    """`key-missing`."""
    bucket = look.installation.names.bucket_stream(Bucket.INSTALLATION)
    if look.status.streams.get(bucket) is None:
        return []  # told already
    if await is_set_up(look.installation, within=ANSWER):
        return [ok("key-missing", "the key that reports are checked with is there")]
    return [
        bad(
            "key-missing",
            "the key that reports are checked with is gone",
            means="no stage starts, and a new key makes the reports of tasks that are out unbelievable",
            do="restore the bucket from a backup; `tocsin init` makes a new key if there is none",
        )
    ]


def _wanted(look: CheckContext) -> Mapping[str, Json]:
    names, bridge = look.installation.names, bool(bridged_queues(look.installation.settings))
    streams = [stream_config(stream, names) for stream in Stream if bridge or stream is not Stream.MQ]
    buckets = [bucket_config(bucket, names) for bucket in Bucket]
    return {config["name"]: config for config in (*streams, *buckets, archive_config(names))}


def _cluster(stream: StreamState) -> list[Finding]:
    if stream.replicas > 1 and stream.leader is None:
        return [
            bad(
                "no-stream-leader",
                f"stream {stream.name} has no leader",
                means="nothing is stored in it until one is elected",
                do="look at the servers: more than half of those that keep it must be up",
            )
        ]
    behind = [peer for peer in stream.peers if peer.is_offline or not peer.is_current]
    if not behind:
        return []
    who = ", ".join(f"{p.name} ({'offline' if p.is_offline else f'{p.lag} behind'})" for p in behind)
    return [
        warn(
            "replica-behind",
            f"stream {stream.name}: {who}",
            means="one more server lost and nothing is stored",
            do="bring the server back, or give it time to catch up",
            stream=stream.name,
        )
    ]


def _told(changed: Mapping[str, tuple[object, object]]) -> str:
    return ", ".join(f"{field} is {old} instead of {new}" for field, (old, new) in changed.items())
