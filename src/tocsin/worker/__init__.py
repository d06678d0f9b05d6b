"""The worker SDK: a process that takes tasks from queues and runs handlers.

    from tocsin import Context, Worker

    worker = Worker(queues=["mail"])

    @worker.task("mail/send")
    async def send(context: Context, to: str) -> None: ...

    worker.run()

The flow of a task: `task_pool` takes it from its queue and starts it in a free slot, `executor` decides how to settle it,
`claim` claims it, `handler_runner` runs its handler, `claim` stores the report, and `outcome` settles the delivery.
Meanwhile `held_tasks` renews its visibility lease and `cancellations` stops it if its execution is cancelled. `session`
starts and stops these parts. The package does not know NATS: `connection` names what its host must provide.
"""

from .connection import Connect, Connection, Options
from .context import Context, NonRetryableError
from .handlers import InvalidHandlerError, InvalidResultError, WrongInputError
from .shutdown import Flag
from .worker import Worker

__all__ = [
    "Connect",
    "Connection",
    "Context",
    "Flag",
    "InvalidHandlerError",
    "InvalidResultError",
    "NonRetryableError",
    "Options",
    "Worker",
    "WrongInputError",
]
