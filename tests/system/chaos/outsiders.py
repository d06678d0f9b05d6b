"""Attacks of programs outside: the users `public` and `public-shop`."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from itertools import count, cycle, islice, product
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from nats.aio.client import Client

from tests.security.server import Server
from tests.security.test_outside_accounts import REPLIES
from tests.security.test_outside_hostile import BODIES, IDS, JOBS, published, send
from tests.stored_events import StoredEvents
from tests.system.chaos.attackers import TIMEOUT_S, Attackers, Tally
from tests.system.chaos.headers import headers_for
from tocsin.domain.events import Recorded, Trigger

USER: Final = "public"
KNOWN: Final = ("guarded", "flaky", "hopeless")
"""Jobs of the load that outsiders trigger too."""
NONSENSE: Final = tuple(body for body in BODIES if len(body) < 1_000)
FLOOD: Final = 10
REASON: Final = "attack "


class Outsiders:
    """Programs that send everything that their accounts let through, and more."""

    def __init__(self, newest_trigger: Callable[[], int], *, replicas: int) -> None:
        """`newest_trigger`: the number in the id of the load's newest trigger; `replicas`: of each stream."""
        self._newest_trigger = newest_trigger
        self._numbers = count()
        self._replies = cycle(product(headers_for(replicas), REPLIES))
        self._internal = cycle(REPLIES)
        self.accepted: set[str] = set()
        """The reasons of the triggers of known jobs that the server acknowledged as stored."""

    def join(self, attackers: Attackers, folder: Path) -> None:
        """Add each attack."""
        attackers.add("triggers of unknown jobs", USER, self.flood_unknown_jobs)
        attackers.add("triggers of known jobs", USER, self.trigger_known_jobs)
        attackers.add("replies to internal subjects", USER, self.ask_for_replies)
        attackers.add("internal subjects", USER, self.publish_on_internal_subjects, is_forbidden=True)
        addresses = cycle(urlsplit(url).port or 0 for url in attackers.url.split(","))
        messages = cycle(_hostile_messages())

        async def play(tally: Tally) -> int:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await send(Server(next(addresses), folder), next(messages))
            tally.refused += answer.startswith(b"-ERR")
            return int(bool(answer))

        attackers.add_round("hostile bytes", play)

    async def flood_unknown_jobs(self, client: Client, _: Tally) -> int:
        """Trigger and cancel jobs that do not exist, with nonsense."""
        for number in islice(self._numbers, FLOOD):
            body = NONSENSE[number % len(NONSENSE)]
            await client.publish(f"cron.trigger.ghost-{number % 50}", body)
            await client.publish(f"cron.cancel.ghost-{number % 50}.{number}", body)
        return 2 * FLOOD

    async def trigger_known_jobs(self, client: Client, tally: Tally) -> int:
        """Trigger jobs under ids that the load uses, and under one id again and again."""
        number = next(self._numbers)
        reason = f"{REASON}{number}"
        ids = (f"chaos-{self._newest_trigger() + number % 20}", f"attack-{number}", f"attack-{number}", "one")
        for message_id in ids:
            answer = await client.request(
                f"cron.trigger.{KNOWN[number % len(KNOWN)]}",
                json.dumps({"reason": f"{reason} {message_id}"}).encode(),
                timeout=TIMEOUT_S,
                headers={"Nats-Msg-Id": message_id},
            )
            stored = json.loads(answer.data)
            is_refused = "error" in stored or stored.get("duplicate", False)
            tally.refused += is_refused
            if not is_refused:
                self.accepted.add(f"{reason} {message_id}")
        return len(ids)

    async def ask_for_replies(self, client: Client, _: Tally) -> int:
        """Have the server's replies sent to the subjects of streams, with headers that command a stream."""
        for headers, reply in islice(self._replies, 2 * FLOOD):
            await client.publish("cron.trigger.guarded-ghost", b'{"no_wait":true}', reply=reply, headers=dict(headers))
        return 2 * FLOOD

    async def publish_on_internal_subjects(self, client: Client, _: Tally) -> int:
        """Publish where only stages may."""
        for subject in islice(self._internal, FLOOD):
            await client.publish(subject, b"{}")
        return FLOOD

    def wrong(self, everything: StoredEvents) -> list[str]:
        """Check that each trigger that was acknowledged to an outsider is stored once, under its account."""
        stored = Counter(recorded.message.reason for recorded in _triggers(everything))
        lost = self.accepted - stored.keys()
        doubled = [reason for reason in self.accepted if stored[reason] > 1]
        return [
            *([f"acknowledged to an outsider, and not stored: {sorted(lost)}"] if lost else []),
            *([f"stored twice for an outsider: {doubled}"] if doubled else []),
        ]


def _triggers(everything: StoredEvents) -> list[Recorded[Trigger]]:
    return [recorded for recorded in everything.facts(Trigger) if (recorded.message.reason or "").startswith(REASON)]


def _hostile_messages() -> list[bytes]:
    """Return messages that break the rules of the protocol, of ids, of bodies or of names."""
    return [
        *(published(b"cron.trigger.guarded", b"{}", message_id) for message_id in IDS),
        *(published(b"cron.trigger.hostile-ghost", body) for body in BODIES),
        *(published(b"cron.trigger.%s" % job, b"{}") for job in JOBS),
        *(published(b"cron.cancel.%s.%s" % (job, job), b"{}") for job in JOBS),
    ]
