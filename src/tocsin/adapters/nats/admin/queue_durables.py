"""The durables of the executors' queues, made when a worker first asks for one."""

from collections.abc import Iterable

from ..client.connection import Connection
from ..client.names import Names
from ..log.projections import NatsProjections
from .desired_state import consumer_config, durable_specs
from .durables import ensure_consumer


async def ensure_executors(connection: Connection, names: Names, queues: Iterable[str], *, ack_wait: float) -> None:
    """Have the durable of each queue be there, with `ack_wait` seconds for each sign of life.

    Raises:
        ProvisionError: it cannot be; most likely nobody ran `tocsin init`.
    """
    projections = NatsProjections(connection, names)
    for spec in durable_specs(queues, (), bridge=False, task_ack_wait=ack_wait):
        await ensure_consumer(connection, projections, spec, names.stream(spec.stream), consumer_config(spec, names))
