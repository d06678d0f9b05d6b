"""The FastStream router of a stage: a batch subscriber for each of its durables."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Union

from faststream import AckPolicy
from faststream.nats import JStream, NatsRouter, PullSub
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig

from .... import subjects, telemetry
from ....engine.edge import EdgeDecisions
from ....engine.stage import BoundStage, BoundSubscription
from ....ports import Delivery
from ..client.connection import FastClient
from ..client.names import Names
from ..log.leader_lag import ReceivedMarks
from .fair_order import FairOrder
from .greedy_batches import GreedyBatches
from .priority import PostponedWork, PriorityGate, Turns
from .pull import NatsDelivery

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from faststream.nats.subscriber.usecases import BatchPullStreamSubscriber

BATCH: Final = 256
"""Larger batches are hardly cheaper, and the next stage waits until the whole batch is handled."""
PULL_WAIT_S: Final = 2.0
"""A pull request stays with the server this long; a stage that stops waits for it."""
FINISH_TIMEOUT_S: Final = 30.0
"""A stage that stops may finish its messages within this time."""
_UNPROVEN: Final = "*"
"""The publisher of messages that prove none. No program has this name."""


def stage_router(  # noqa: PLR0913 - what a stage shares with its process, each by its name
    stage: BoundStage,
    outcomes: EdgeDecisions,
    names: Names,
    *,
    marks: ReceivedMarks,
    finish_within: float = FINISH_TIMEOUT_S,
    inbox_prefix: str = "_INBOX",
    precedence: PriorityGate | None = None,
    fast_client: FastClient = "auto",
    is_specified: bool = False,
) -> NatsRouter:
    """Return a router with a subscriber for each durable of a stage.

    `provision` must have created the durables. `marks` are those of the log on which the stage decides, `inbox_prefix` and
    `fast_client` those of the shared client, and `precedence` that of the process. With `is_specified`, FastStream's
    specification shows the types of the messages: it then makes a model of each handler, which takes most of the time in which
    stages start.
    """
    router, inbox = NatsRouter(), f"{inbox_prefix}.".encode()
    precedence = precedence or PriorityGate()
    for subscription in stage.subscriptions:
        turns = Turns(precedence, low_priority=subscription.low_priority)
        postponed = PostponedWork(precedence, outcomes.finish)
        deliveries = DeliveryDecoder(names, partial(marks.note, subscription.stream))
        subscriber = _subscriber(router, stage, subscription, names, deliveries.decode, inbox=inbox)
        deliveries.batches = GreedyBatches(
            subscriber,
            finish_within=finish_within,
            turns=turns,
            postponed=postponed,
            order=FairOrder(partial(_turn_of, names, subscription.is_proven)) if subscription.takes_turns else None,
            read_ahead=subscription.read_ahead,
            read_ahead_s=subscription.ack_wait / 3,
            fast_client=fast_client,
        )
        handle = _handler(stage, subscription, outcomes)
        payload = list[_payload(subscription)] if is_specified else list  # type: ignore[misc]
        handle.__annotations__ = {"deliveries": payload, "return": None}
        subscriber(handle)
    return router


class DeliveryDecoder:
    """FastStream's decoder of a subscriber: a handler receives a batch as deliveries.

    The body of each is decoded when it is decided on, by the type in its subject. So an unreadable message is set aside, and
    the rest of its batch is handled; FastStream's own decoder of typed batches would fail the whole batch.
    """

    batches: GreedyBatches
    """What fetches the messages. It is set later, because it needs the subscriber, and the subscriber this decoder."""

    def __init__(self, names: Names, note: Callable[[int], None]) -> None:
        self._names = names
        self._note = note

    async def decode(self, message: "StreamMessage[Sequence[Msg]]") -> list[Delivery]:
        """Return the deliveries of a batch."""
        transport = self.batches.transport
        deliveries = [NatsDelivery(raw, self._names, transport) for raw in message.raw_message]
        self._note(max(delivery.sequence for delivery in deliveries))
        return list[Delivery](deliveries)


def _subscriber(
    router: NatsRouter,
    stage: BoundStage,
    subscription: BoundSubscription,
    names: Names,
    decode: Callable[["StreamMessage[Sequence[Msg]]"], Awaitable[list[Delivery]]],
    *,
    inbox: bytes,
) -> "BatchPullStreamSubscriber":
    filters = [names.to_wire(subject) for subject in subscription.filters]
    return router.subscriber(
        filters[0],
        durable=subscription.durable,
        stream=JStream(names.stream(subscription.stream), declare=False),
        pull_sub=PullSub(batch_size=BATCH, batch=True, timeout=PULL_WAIT_S),
        config=ConsumerConfig(filter_subjects=filters, ack_wait=subscription.ack_wait, max_deliver=-1),
        ack_policy=AckPolicy.MANUAL,
        no_reply=True,
        inbox_prefix=inbox,
        decoder=decode,
        title=f"{stage.name}: {subscription.durable}",
        description=f"{stage.name} consumes {', '.join(subscription.filters)}",
    )


def _handler(
    stage: BoundStage,
    subscription: BoundSubscription,
    outcomes: EdgeDecisions,
) -> Callable[[list[Delivery]], Awaitable[None]]:
    async def handle(deliveries: list[Delivery]) -> None:
        with telemetry.bound(stage=stage.name):
            await outcomes.apply(subscription, deliveries)

    return handle


def _turn_of(names: Names, is_proven: Callable[[str], bool] | None, subject: str) -> tuple[str, str]:
    """Return the publisher and the job that take turns.

    Subjects that prove no publisher have a turn together: a worker may invent any number of jobs.
    """
    relative = names.from_wire(subject)
    publisher, job = subjects.turn_of(relative)
    return (publisher, job) if is_proven is None or is_proven(relative) else (_UNPROVEN, job)


def _payload(subscription: BoundSubscription) -> object:
    """Return the type of the messages of a subscription, which FastStream's specification shows."""
    kinds = dict.fromkeys(subjects.type_of(subject) for subject in subscription.filters)
    return Union[tuple(kinds)]  # noqa: UP007 - the types are known when this runs
