"""Whether everything that waits is being worked off."""

from datetime import timedelta
from typing import Final

from ..context import CheckContext
from ..finding import Finding, bad, ok, warn
from ..status import Durable

LATE: Final = timedelta(seconds=60)
"""A message that a stage has not dealt with for so long is late."""


async def stages(look: CheckContext) -> list[Finding]:
    """`stage-absent`, `stage-late`, `durable-full`."""
    findings = []
    for durable in look.status.durables:
        if durable.owner in {"", "executors"}:
            continue
        state = durable.state
        late = durable.oldest is not None and look.age(durable.oldest) >= LATE
        if state.ack_pending >= state.max_ack_pending > 0:
            findings.append(_full(durable))
        elif late and not state.readers:
            findings.append(
                bad(
                    "stage-absent",
                    f"nobody reads {state.name}: {_waiting(look, durable)}",
                    means=f"what {durable.owner} decides is not decided",
                    do=f"run `tocsin run {durable.owner.replace('_', '-')}`",
                    durable=state.name,
                )
            )
        elif late:
            findings.append(
                warn(
                    "stage-late",
                    f"{durable.owner} is behind on {state.name}: {_waiting(look, durable)}",
                    means="it has too much to do, or hands the same message back again and again",
                    do="look at its log for `handed back` and `a handler failed`, and run more copies of it",
                    durable=state.name,
                )
            )
    return findings or [ok("stage-late", "every stage has dealt with all that it was given a minute ago")]


async def queues(look: CheckContext) -> list[Finding]:
    """`queue-unattended`, `durable-full`."""
    findings = [
        _full(durable)
        for durable in look.status.durables
        if durable.owner == "executors" and durable.state.ack_pending >= durable.state.max_ack_pending > 0
    ]
    unattended = [queue for queue in look.status.queues if queue.is_unattended]
    findings += [
        bad(
            "queue-unattended",
            f"{queue.waiting} tasks of queue `{queue.name}` wait, and no worker asks for them",
            means="their executions do not begin",
            do=f"run a worker for it: `Worker(queues=[{queue.name!r}])`, `tocsin worker MODULE:ATTRIBUTE`",
            queue=queue.name,
        )
        for queue in unattended
    ]
    return findings or [ok("queue-unattended", "no tasks wait without a worker")]


def _waiting(look: CheckContext, durable: Durable) -> str:
    state = durable.state
    age = "" if durable.oldest is None else f", the oldest for {look.age(durable.oldest).total_seconds():.0f} s"
    return f"{state.pending} wait, {state.ack_pending} are out{age}"


def _full(durable: Durable) -> Finding:
    state = durable.state
    return bad(
        "durable-full",
        f"{state.name} has {state.ack_pending} messages out, and gives out no more",
        means="whoever took them has not dealt with them; the rest waits for that",
        do="look for readers that hang; what they do not acknowledge comes again after the acknowledgement wait",
        durable=state.name,
    )
