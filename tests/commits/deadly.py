"""Tocsin in a process that ends by SIGKILL when the planner decides on a trigger of the job `deadly`.

python -m tests.commits.deadly [tocsin's own arguments]
"""

import os
import signal
from datetime import datetime

from tocsin import subjects
from tocsin.cli import main
from tocsin.domain.events import Message, Recorded
from tocsin.engine.step import States, Step
from tocsin.stages.planner import PLANNER, Planner

DEADLY = "deadly"


def on_trigger(planner: Planner, recorded: Recorded[Message], states: States, now: datetime) -> Step:
    """Decide on a trigger, or die."""
    if subjects.job_of(recorded.subject) == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)
    return planner.on_trigger(recorded, states, now)


if __name__ == "__main__":
    for subscription in PLANNER.subscriptions:
        if subscription.decide is Planner.on_trigger:
            object.__setattr__(subscription, "decide", on_trigger)
    main()
