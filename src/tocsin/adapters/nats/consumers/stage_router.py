"""A stage over FastStream: its durables become batch subscribers of a router, its outcomes are applied to what they bring."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from faststream import AckPolicy
from faststream.nats import JStream, NatsRouter, PullSub
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig

from ....engine.delivery_policy import DeliveryPolicy
from ....engine.stage import Stage, Subscription
from ..client.names import Names
from .greedy_batches import make_greedy
from .priority_gate import PriorityGate, Turns
from .task_queue import NatsDelivery

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from faststream.nats.subscriber.usecases import BatchPullStreamSubscriber

BATCH: Final = 128
"""Messages at once: more of them save nothing, and the next stage waits for the first until all are handled."""
WAIT: Final = 2.0
"""Seconds that one request for messages stays with the server; a stage that is asked to stop waits for at most this long."""
FINISH_WITHIN: Final = 30.0
"""Seconds that a stage which is asked to stop may go on with what it handles."""


def stage_router(
    stage: Stage,
    outcomes: DeliveryPolicy,
    names: Names,
    *,
    finish_within: float = FINISH_WITHIN,
    inbox_prefix: str = "_INBOX",
    precedence: PriorityGate | None = None,
) -> NatsRouter:
    """A router with one subscriber for each durable of a stage. The durables exist: `provision` made them.

    `inbox_prefix`: of the client that they will share. `precedence`: that of the process.
    """
    router, inbox = NatsRouter(), f"{inbox_prefix}.".encode()
    precedence = precedence or PriorityGate()
    for subscription in stage.subscriptions:
        subscriber = _subscriber(router, stage, subscription, outcomes, names, inbox=inbox)
        turns = Turns(precedence, low_priority=subscription.low_priority)
        make_greedy(subscriber, finish_within=finish_within, turns=turns)
    return router


def _subscriber(
    router: NatsRouter,
    stage: Stage,
    subscription: Subscription,
    outcomes: DeliveryPolicy,
    names: Names,
    *,
    inbox: bytes,
) -> "BatchPullStreamSubscriber":
    filters = [wire for subject in subscription.filters for wire in names.filters(subject)]
    subscriber = router.subscriber(
        filters[0],
        durable=subscription.durable,
        stream=JStream(names.stream(subscription.stream), declare=False),
        pull_sub=PullSub(batch_size=BATCH, batch=True, timeout=WAIT),
        config=ConsumerConfig(filter_subjects=filters, ack_wait=subscription.ack_wait, max_deliver=-1),
        ack_policy=AckPolicy.MANUAL,
        no_reply=True,
        inbox_prefix=inbox,
        decoder=_as_it_is,
        title=f"{stage.name}: {subscription.durable}",
        description=f"{stage.name} consumes {', '.join(subscription.filters)}",
    )

    @subscriber
    async def handle(messages: list[Msg]) -> None:
        await outcomes.apply(subscription, [NatsDelivery(message, names) for message in messages])

    return subscriber


async def _as_it_is(message: "StreamMessage[Sequence[Msg]]") -> Sequence[Msg]:
    """The stages read bodies by their subjects; decoding them here would do it twice."""
    return message.raw_message
