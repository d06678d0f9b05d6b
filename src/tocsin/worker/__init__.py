"""The worker SDK: a process that takes tasks from queues and runs handlers.

    from tocsin import Context, Worker

    worker = Worker(queues=["mail"])

    @worker.task("mail/send")
    async def send(context: Context, to: str) -> None: ...

    worker.run()

The matcher stores the claim of a task, and sends the task to this process. `agent` receives it, `task_pool` starts it in a
free slot, `handler_runner` runs its handler, and `executor` stores the report or hands the task back. Meanwhile `agent` sends
hold lists with the tasks of `held_tasks`, and `cancellations` stops a task if its execution is over. `session` starts and
stops these parts. The package does not know NATS: `connection` names what its host must provide.
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
