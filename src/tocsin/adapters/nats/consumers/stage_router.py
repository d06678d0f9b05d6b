"""The FastStream router of a stage: a batch subscriber for each of its durables."""

from collections.abc import Awaitable, Callable, Sequence
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
from .greedy_batches import GreedyBatches
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


def stage_router(
    stage: BoundStage,
    decisions: EdgeDecisions,
    names: Names,
    *,
    finish_within: float = FINISH_TIMEOUT_S,
    inbox_prefix: str = "_INBOX",
    fast_client: FastClient = "auto",
    is_specified: bool = False,
) -> NatsRouter:
    """Return a router with a subscriber for each durable of a stage.

    `provision` must have created the durables. `inbox_prefix` and `fast_client` are those of the shared client. With `is_specified`,
    FastStream's specification shows the types of the messages: it then makes a model of each handler, which takes most of the time in which
    stages start.
    """
    router, inbox = NatsRouter(), f"{inbox_prefix}.".encode()
    for subscription in stage.subscriptions:
        deliveries = DeliveryDecoder(names)
        subscriber = _subscriber(router, stage, subscription, names, deliveries.decode, inbox=inbox)
        deliveries.batches = GreedyBatches(subscriber, finish_within=finish_within, fast_client=fast_client)
        handle = _handler(stage, subscription, decisions)
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

    def __init__(self, names: Names) -> None:
        self._names = names

    async def decode(self, message: "StreamMessage[Sequence[Msg]]") -> list[Delivery]:
        """Return the deliveries of a batch."""
        transport = self.batches.transport
        return [NatsDelivery(raw, self._names, transport) for raw in message.raw_message]


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
    stage: BoundStage, subscription: BoundSubscription, decisions: EdgeDecisions
) -> Callable[[list[Delivery]], Awaitable[None]]:
    async def handle(deliveries: list[Delivery]) -> None:
        with telemetry.bound(stage=stage.name):
            await decisions.apply(subscription, deliveries)

    return handle


def _payload(subscription: BoundSubscription) -> object:
    """Return the type of the messages of a subscription, which FastStream's specification shows."""
    kinds = dict.fromkeys(subjects.type_of(subject) for subject in subscription.filters)
    return Union[tuple(kinds)]  # noqa: UP007 - the types are known when this runs
