"""The state that the answer to a heartbeat directs a worker to (ojs-worker-protocol §4.4)."""

from collections.abc import Mapping
from typing import Final

from .... import telemetry
from ....domain.agent import Mode
from ....ports import LogUnavailable
from ....services.agents import AgentRegistry
from ....services.operations.task_leases import Held, Holder
from ..api.dependencies import Components
from . import job_view

DIRECTIVES: Final[Mapping[Mode, str]] = {"enabled": "running", "disabled": "quiet", "draining": "terminate"}

_log = telemetry.get_logger("tocsin.http")


async def of_operators(here: Components, holder: Holder) -> str:
    """Return the state that operators decided on.

    `running` if this cannot be read: the leases are extended already, and the next heartbeat brings it.
    """
    try:
        mode = await AgentRegistry(here.log, here.projections).mode_over_http(holder.identity, holder.worker)
    except LogUnavailable as error:
        _log.warning("decision on a worker not read", action="no-directive", worker=holder.worker, error=str(error))
        return DIRECTIVES["enabled"]
    return DIRECTIVES[mode]


def of_suite(here: Components, held: Held) -> str | None:
    """Return the test directive of the conformance suite, if `/dev/reset` is enabled.

    Elsewhere a client that enqueues could stop workers.
    """
    if here.reset is None:
        return None
    options = job_view.about_of(held.state.request.plan.meta).get("options")
    metadata = options.get("metadata") if isinstance(options, dict) else None
    directive = metadata.get("test_directive") if isinstance(metadata, dict) else None
    return directive if directive in {"quiet", "terminate"} else None
