"""The stages of the scheduler.

To add a stage, write its module and list its declaration in `STAGES`. The engine brings each stage its inputs, events and
deadlines, and appends its decisions (`engine.commit_loop`).
"""

from typing import Final

from ..engine.stage import AnyStage
from .agent_keeper.stage import AGENT_KEEPER
from .archiver.stage import ARCHIVER
from .dag_advancer.stage import DAG_ADVANCER
from .dead_letter_sink import DEAD_LETTER_SINK
from .dependency_keeper.stage import DEPENDENCY_KEEPER
from .event_listener.stage import EVENT_LISTENER
from .lease_keeper import LEASE_KEEPER
from .lock_keeper import LOCK_KEEPER
from .matcher.stage import MATCHER_STAGE
from .mq_bridge import MQ_BRIDGE
from .notary import NOTARY
from .notifier.stage import NOTIFIER
from .planner import PLANNER
from .recorder.stage import RECORDER
from .recoverer import RECOVERER
from .registrar import REGISTRAR
from .retrier import RETRIER
from .screener import SCREENER
from .ticker import TICKER

STAGES: Final[tuple[AnyStage, ...]] = (
    SCREENER,
    REGISTRAR,
    TICKER,
    EVENT_LISTENER,
    PLANNER,
    DEPENDENCY_KEEPER,
    LOCK_KEEPER,
    DAG_ADVANCER,
    MATCHER_STAGE,
    LEASE_KEEPER,
    RETRIER,
    DEAD_LETTER_SINK,
    RECOVERER,
    AGENT_KEEPER,
    RECORDER,
    ARCHIVER,
    NOTARY,
    NOTIFIER,
    MQ_BRIDGE,
)
"""Every stage, in the order in which a process takes their leases. Nothing else lists them."""

__all__ = ["STAGES"]
