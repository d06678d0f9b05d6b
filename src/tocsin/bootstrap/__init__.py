"""The composition root: the only place that knows every part, and which fits where.

installation                           one Tocsin on one NATS, connected
queues, electing                       what is made of its settings
composing, archiving                   the stages, and what each is given
provisioning, running, rebuilding      what is done with them
working                                what a worker is given
"""

from .history_rebuild import rebuild_history
from .installation import Installation, Unreachable, await_log, connect, is_set_up, names_of
from .provision import durables_of, initialize
from .queues import bridged_queues, own_queues
from .stage_runner import run_stages
from .stages import STAGES, compose
from .worker_connection import connect_worker, worker_connection

__all__ = [
    "STAGES",
    "Installation",
    "Unreachable",
    "await_log",
    "bridged_queues",
    "compose",
    "connect",
    "connect_worker",
    "durables_of",
    "initialize",
    "is_set_up",
    "names_of",
    "own_queues",
    "rebuild_history",
    "run_stages",
    "worker_connection",
]
