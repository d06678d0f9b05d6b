"""Repeated deliveries of an installation's durables, computed from the server's counters.

A durable counts its deliveries, but not how many of them were repetitions. A second consumer with the same filters, which starts
after the last message at the time, reads nothing and learns from the server how many messages match since then. Those, plus the
messages that were pending at the start, minus the messages pending at the end, are first deliveries. All others were repetitions.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tocsin.adapters.nats.client.connection import Json
from tocsin.bootstrap import Installation
from tocsin.subjects import Stream

_NAME: Final = "benchmark-count"


@dataclass(frozen=True, slots=True)
class Standing:
    """The positions of the durables.

    Attributes:
        last: the last sequence of each stream.
        delivered: deliveries so far, by durable.
        pending: messages not yet delivered, by durable.
    """

    last: Mapping[Stream, int]
    delivered: Mapping[str, int]
    pending: Mapping[str, int]


async def streams(installation: Installation) -> list[Stream]:
    """Return the streams of an installation that its server has."""
    there_are = (await installation.connection.manage("STREAM.NAMES"))["streams"]
    return [stream for stream in Stream if installation.names.stream(stream) in there_are]


async def last_sequences(installation: Installation) -> dict[Stream, int]:
    """Return the last sequence of each stream, which counts what was ever stored in it."""
    manage, names = installation.connection.manage, installation.names
    infos = {stream: await manage(f"STREAM.INFO.{names.stream(stream)}") for stream in await streams(installation)}
    return {stream: info["state"]["last_seq"] for stream, info in infos.items()}


async def standing(installation: Installation) -> Standing:
    """Return the positions of the durables of an idle installation."""
    last = await last_sequences(installation)
    durables = [durable for stream in last for durable in await _durables(installation, stream)]
    return Standing(
        last,
        {durable["name"]: durable["delivered"]["consumer_seq"] for durable in durables},
        {durable["name"]: durable["num_pending"] for durable in durables},
    )


async def redelivered(installation: Installation, since: Standing) -> int:
    """Return the number of repeated deliveries of all durables since an earlier position."""
    again = 0
    for stream in since.last:
        for durable in await _durables(installation, stream):
            name = durable["name"]
            if deliveries := durable["delivered"]["consumer_seq"] - since.delivered.get(name, 0):
                there_are = await _matching(installation, stream, durable["config"], after=since.last[stream])
                again += deliveries - (there_are + since.pending.get(name, 0) - durable["num_pending"])
    return again


async def waiting(installation: Installation) -> int:
    """Return the number of messages that a durable has not yet received or acknowledged."""
    durables = [durable for stream in await streams(installation) for durable in await _durables(installation, stream)]
    return sum(durable["num_pending"] + durable["num_ack_pending"] for durable in durables)


async def _durables(installation: Installation, stream: Stream) -> list[Json]:
    listed = await installation.connection.manage(f"CONSUMER.LIST.{installation.names.stream(stream)}")
    return [one for one in listed["consumers"] if one["config"].get("durable_name")]


async def _matching(installation: Installation, stream: Stream, durable: Json, *, after: int) -> int:
    """Return the number of messages for a durable after a sequence.

    Each filter is queried by itself: the server counts for one filter immediately, and for several filters it scans every subject. The
    filters do not overlap.
    """
    filters = durable.get("filter_subjects") or [durable["filter_subject"]]
    return sum([await _behind(installation, stream, one, after=after) for one in filters])


async def _behind(installation: Installation, stream: Stream, filtered: str, *, after: int) -> int:
    manage, name = installation.connection.manage, installation.names.stream(stream)
    config = {
        "name": _NAME,
        "filter_subject": filtered,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": after + 1,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
    }
    asked = json.dumps({"stream_name": name, "config": config}).encode()
    told = await manage(f"CONSUMER.CREATE.{name}.{_NAME}.{filtered}", asked)
    await manage(f"CONSUMER.DELETE.{name}.{_NAME}")
    behind: int = told["num_pending"]
    return behind
