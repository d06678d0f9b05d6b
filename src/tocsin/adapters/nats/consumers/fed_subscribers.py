"""FastStream subscribers of the stages that a loop of commits decides for.

One reader of the process reads each stream once, and feeds its batches to the subscriber of every stage that takes something
from the batch: so a middleware sees every input, and every commit of another process, before a stage decides on it. The log
has one subscriber for all stages of the process. No subscriber has a consumer of its own on the server.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, PullSub
from faststream.nats.message import NatsBatchMessage

from .... import subjects, telemetry
from ....domain.events import Message, Recorded
from ....engine.stage import BoundStage
from ....ports.commit_log import StoredBody
from ....subjects import DECISION_STREAMS, Stream
from ..client.names import Names
from .greedy_batches import NoSubscription

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from faststream.nats.subscriber.usecases import BatchPullStreamSubscriber

RETRY_S: Final = 1.0
"""The pause before a batch is fed again that a middleware did not let through."""

_log = telemetry.get_logger("tocsin.nats")


class FedSubscribers:
    """The subscribers of a process.

    A stage gets nothing of a stream if its subscriber is taken out of the broker before `present` is called.
    """

    def __init__(self, broker: NatsBroker, names: Names, log: str, stages: Sequence[BoundStage]) -> None:
        """`log`: the name of the stream of commits on the wire."""
        self._broker = broker
        self._inputs: dict[Stream, list[_Fed]] = {}
        for stage in stages:
            for stream in dict.fromkeys(each.stream for each in stage.subscriptions):
                if stream not in DECISION_STREAMS:
                    filters = [f for each in stage.subscriptions if each.stream is stream for f in each.filters]
                    wire = [names.to_wire(subject) for subject in filters]
                    fed = _Fed(broker, stage.name, names.stream(stream), wire, filters)
                    self._inputs.setdefault(stream, []).append(fed)
        followers = [s.name for s in stages if any(each.stream in DECISION_STREAMS for each in s.subscriptions)]
        self._commits = _Fed(broker, ", ".join(followers), log, [f"{log}.>"], (">",)) if followers else None

    def present(self, stages: Sequence[BoundStage]) -> list[BoundStage]:
        """Return stages with the subscriptions that have a subscriber in the broker."""
        known = [fed for of_stream in self._inputs.values() for fed in of_stream]
        gone = {(fed.title, fed.stream) for fed in known if not fed.is_in(self._broker)}
        has_log = self._commits is not None and self._commits.is_in(self._broker)
        streams = {stream: of_stream[0].stream for stream, of_stream in self._inputs.items()}

        def is_present(stage: BoundStage, stream: Stream) -> bool:
            return has_log if stream in DECISION_STREAMS else (stage.name, streams[stream]) not in gone

        return [
            replace(stage, subscriptions=tuple(one for one in stage.subscriptions if is_present(stage, one.stream)))
            for stage in stages
        ]

    async def inputs(self, stream: Stream, messages: Sequence[Recorded[Message]]) -> None:
        """Pass a batch of inputs through the subscribers of the stages that take some."""
        for fed in self._inputs.get(stream, ()):
            if wanted := [recorded for recorded in messages if fed.takes(recorded.subject)]:
                await fed.feed(self._broker, wanted)

    async def commits(self, bodies: Sequence[StoredBody]) -> None:
        """Pass commits of other processes through the subscriber of the log."""
        if self._commits is not None and bodies:
            await self._commits.feed(self._broker, bodies)


class _Fed:
    """A subscriber that is fed, and fetches nothing."""

    def __init__(
        self, broker: NatsBroker, title: str, stream: str, wire: Sequence[str], filters: Sequence[str]
    ) -> None:
        self.title = title
        self.stream = stream
        self.takes: Callable[[str], object] = subjects.any_of(tuple(filters))
        self._received = 0
        self._subscriber: BatchPullStreamSubscriber = broker.subscriber(
            wire[0],
            stream=JStream(stream, declare=False),
            durable=None,
            pull_sub=PullSub(batch_size=1, batch=True),
            ack_policy=AckPolicy.MANUAL,
            no_reply=True,
            parser=_parse,
            decoder=_decode,
            title=f"{title}: {stream}",
            description=f"{title} takes {', '.join(filters)}",
        )
        self._subscriber.start = partial(_start, self._subscriber)  # type: ignore[method-assign]

        async def handle(messages: list[Any]) -> None:
            self._received = len(messages)

        handle.__annotations__ = {"messages": list, "return": None}
        self._subscriber(handle)

    def is_in(self, broker: NatsBroker) -> bool:
        """Return whether a broker has the subscriber."""
        return any(one is self._subscriber for one in broker.subscribers)

    async def feed(self, broker: NatsBroker, messages: Sequence[Any]) -> None:
        """Let the subscriber consume a batch; again, if a middleware did not let it through."""
        while self.is_in(broker):
            self._received = 0
            await self._subscriber.consume(list(messages))
            if self._received or not self._subscriber.running:
                return
            _log.error("messages not let through; feeding them again", action="not-let-through", subscriber=self.title)
            await asyncio.sleep(RETRY_S)


async def _start(subscriber: "BatchPullStreamSubscriber") -> None:
    subscriber.subscription = NoSubscription()  # type: ignore[assignment] # FastStream then fetches nothing itself
    await type(subscriber).start(subscriber)


async def _parse(messages: list[Any]) -> "StreamMessage[list[Any]]":
    return NatsBatchMessage(raw_message=messages, body=b"")


async def _decode(message: "StreamMessage[list[Any]]") -> list[Any]:
    return message.raw_message
