"""Which queues an installation has, and whose executors serve them."""

from ..settings import Settings
from ..subjects import DEFAULT_QUEUE


def bridged_queues(settings: Settings) -> list[str]:
    """The queues whose executors are outside."""
    return [name for name, queue in settings.queues.items() if queue.transport == "mq"]


def own_queues(settings: Settings) -> tuple[str, ...]:
    """The queues that workers of ours serve; a durable on one of the others would wait for them for ever."""
    return tuple(sorted({DEFAULT_QUEUE, *settings.queues} - set(bridged_queues(settings))))
