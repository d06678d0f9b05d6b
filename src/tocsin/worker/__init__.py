"""The SDK: whoever imports this runs the jobs.

    @worker.task("hanzo/iam/credit-reconcile")       handlers.py, signatures.py
    async def credit_reconcile(context): ...         context.py, flag.py, errors.py

A task goes this way (DESIGN §2.2, §2.3): `intake` takes it, `crew` starts it in a free slot, `executor` says in one
sentence what becomes of it: `claiming`, then `invocation` runs its handler into an `outcome`, `reporting` stores that,
`disposal` settles it. Meanwhile `heartbeat` keeps it, and `cancellations` hears when its execution is called off.
`session` lists all of these and ends them. Nothing here knows NATS: `connection` is what the outside must bring.
"""

from .connection import Connect, Connection
from .context import Context
from .errors import NonRetryableError
from .flag import Flag
from .signatures import InvalidHandlerError
from .worker import Worker

__all__ = ["Connect", "Connection", "Context", "Flag", "InvalidHandlerError", "NonRetryableError", "Worker"]
