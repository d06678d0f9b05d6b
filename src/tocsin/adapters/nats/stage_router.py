"""A stage over FastStream: its durables become batch subscribers of a router, its outcomes are applied to what they bring."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from faststream import AckPolicy
from faststream.nats import JStream, NatsRouter, PullSub
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig

from ...outcomes import Outcomes
from ...stage import Stage, Subscription
from .greedy_batches import make_greedy
from .naming import Names
from .task_queue import NatsDelivery

if TYPE_CHECKING:
    from faststream.message import StreamMessage

BATCH: Final = 256
WAIT: Final = 5.0
"""Seconds that one request for messages stays with the server."""


def stage_router(stage: Stage, outcomes: Outcomes, names: Names) -> NatsRouter:
    """A router with one subscriber for each durable of a stage. The durables exist: `provision` made them."""
    router = NatsRouter()
    for subscription in stage.subscriptions:
        _subscribe(router, stage, subscription, outcomes, names)
    return router


def _subscribe(router: NatsRouter, stage: Stage, subscription: Subscription, outcomes: Outcomes, names: Names) -> None:
    filters = [wire for subject in subscription.filters for wire in names.filters(subject)]
    subscriber = router.subscriber(
        filters[0],
        durable=subscription.durable,
        stream=JStream(names.stream(subscription.stream), declare=False),
        pull_sub=PullSub(batch_size=BATCH, batch=True, timeout=WAIT),
        config=ConsumerConfig(filter_subjects=filters, ack_wait=subscription.ack_wait, max_deliver=-1),
        ack_policy=AckPolicy.MANUAL,
        no_reply=True,
        decoder=_as_it_is,
        title=f"{stage.name}: {subscription.durable}",
        description=f"{stage.name} consumes {', '.join(subscription.filters)}",
    )
    make_greedy(subscriber)

    @subscriber
    async def handle(messages: list[Msg]) -> None:
        await outcomes.apply(subscription, [NatsDelivery(message, names) for message in messages])


async def _as_it_is(message: "StreamMessage[Sequence[Msg]]") -> Sequence[Msg]:
    """The stages read bodies by their subjects; decoding them here would do it twice."""
    return message.raw_message
