"""Candidates for a lease, by the settings."""

import os
import socket
from collections.abc import Sequence
from secrets import token_hex

from ..engine.leader_election import LeaderElection
from ..engine.leadership_events import LeadershipEvents
from .installation import Installation


def candidate(installation: Installation, lease: str, *, signs: Sequence[str] | None = None) -> LeaderElection:
    """A candidate for a lease. `signs`: what shows that somebody led before; None: it is not recorded who leads."""
    leader, log, clock = installation.settings.leader, installation.log, installation.clock
    holder = f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"  # nobody else is called so
    return LeaderElection(
        installation.projections,
        clock,
        key=lease,
        holder=holder,
        ttl=leader.ttl,
        renew_interval=leader.renew_interval,
        facts=None if signs is None else LeadershipEvents(log, clock, lease=lease, holder=holder, signs=signs),
    )
