"""A hostile worker, which follows the protocol of agents when it likes, and lies about claims.

It reads the whole log, so it knows every id and every sequence. Of the secrets it knows those that came with its own tasks. What it
may do by them is reported as `OWN`; everything else that it stores says `FORGED`, and must have no effect.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from tests.stored_events import StoredEvents
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.agent import Assignment, HoldList, unframed
from tocsin.domain.events import Dispatched, Failure, Message, PoisonMessage, Recorded, Report, Started, validated
from tocsin.ports import LogUnavailable

from .agents import Hall, SimulatedChannel
from .faults import NONE
from .network import Network, at_once
from .ports import SimulatedLog
from .process import Process
from .server import SimulatedServer
from .workload import ASSIGNED, FUNCTION, QUEUES

NAME: Final = "forger"
OWN: Final = "of the forger"
FORGED: Final = "forged"
HONEST: Final = 0.5
"""The share of its tasks that it reports, with an outcome of its choice. It hands back the others."""
RECENT: Final = 6
"""The number of newest claims about which it lies."""
SLOTS: Final = 2
_DEEP: Final = 10_000
_BODIES: Final = (
    b"",
    b"{",
    b"\xff\xfe",
    b"null",
    b"[" * _DEEP,
    b'{"v":1,"type":"report"}',
    b'{"v":99,"type":"report"}',
)


@dataclass(slots=True)
class Task:
    """A task that it received."""

    assignment: Assignment
    task: Dispatched

    @property
    def held_name(self) -> str:
        task = self.task
        return f"{subjects.token(task.job)}.{task.execution_id}.{subjects.token(task.step)}.{task.attempt}"


class Forger:
    """One process of it."""

    def __init__(
        self,
        server: SimulatedServer,
        network: Network,
        hall: Hall,
        log: SimulatedLog,
        channel: SimulatedChannel,
        process: Process,
        *,
        seed: int,
    ) -> None:
        """Start it."""
        self._server = server
        self._network = network
        self._hall = hall
        self._log = log
        self._channel = channel
        self._process = process
        self._chance = Random(f"{seed}/{process.name}/forger")
        self._id = _agent_id(self._chance)
        self._number = 0
        self._received: list[Task] = []
        self._held: dict[int, Task] = {}
        self._handed_back: list[int] = []
        process.spawn("forger", self._run)
        process.spawn("forger's tasks", self._listen)

    def stop(self) -> None:
        """In good order: take nothing more."""

    async def _listen(self) -> None:
        async with self._channel.tasks(NAME, self._id, self._receive):
            await self._process.wait(float(10**6))

    def _receive(self, message: bytes) -> None:
        assignment, body = unframed(message)
        task = subjects.decode(assignment.subject, body)
        if isinstance(task, Dispatched) and assignment.claim not in self._held:
            got = Task(assignment, task.task)
            self._received.append(got)
            self._held[assignment.claim] = got
            self._process.spawn("a forger's task", partial(self._work, got))

    async def _run(self) -> None:
        while not self._process.is_stopping:
            await self._process.wait(self._chance.uniform(0.05, 0.4))
            await self._announce()
            if self._network.faults is not NONE:
                await self._chance.choice((self._lie, self._lie, self._lie, self._garble, self._pretend))()

    async def _announce(self) -> None:
        """Say what it holds, truly: an agent that does not is lost."""
        is_over = self._network.faults is NONE
        self._number += 1
        hold_list = HoldList(
            number=self._number,
            mode="draining" if is_over else "enabled",
            queues=(*QUEUES, ASSIGNED),
            functions=(FUNCTION,),
            max_concurrent_jobs=SLOTS,
            held=tuple(task.held_name for task in self._held.values()),
            handed_back=tuple(self._handed_back[-100:]),
        )
        await self._channel.announce(NAME, self._id, hold_list.model_dump_json().encode())

    async def _work(self, got: Task) -> None:
        await self._process.wait(self._chance.choice((0.05, 0.5, 2.0)))
        if self._chance.random() >= HONEST:
            self._handed_back.append(got.assignment.claim)
            del self._held[got.assignment.claim]
            return
        outcome = self._chance.choice(("completed", "failed"))
        for _ in range(self._chance.choice((1, 1, 2))):
            await self._store(self._of_its_own(got, outcome))
        self._held.pop(got.assignment.claim, None)

    def _of_its_own(self, got: Task, outcome: str, said: str = OWN) -> Report:
        assignment, task = got.assignment, got.task
        return Report(
            job=task.job,
            execution_id=task.execution_id,
            outcome="completed" if outcome == "completed" else "failed",
            step=task.step,
            attempt=task.attempt,
            token=task.token,
            delivery=assignment.delivery,
            result=said if outcome == "completed" else None,
            error=None if outcome == "completed" else Failure(type=said, message=said),
            worker=NAME,
            claim=assignment.claim,
            proof=assignment.proof,
        )

    async def _lie(self) -> None:
        """Report on a claim of another, by secrets of its own claims or by invented proofs."""
        claims = self._claims()
        if not claims:
            return
        chance, target = self._chance, self._chance.choice(claims)
        of_the_attempt = [got for got in self._received if _attempt(got.task) == _attempt(target.message)]
        got = chance.choice(of_the_attempt or self._received) if self._received else None
        if got is not None and got.assignment.claim == target.sequence:
            return
        outcome = chance.choice(("completed", "failed"))
        invented = f"{chance.getrandbits(128):032x}"
        claim = target.message
        fields = {
            "job": claim.job,
            "execution_id": claim.execution_id,
            "step": claim.step,
            "attempt": claim.attempt,
            "token": got.task.token if got and chance.random() < 0.7 else invented,
            "delivery": chance.choice((claim.delivery, claim.delivery, claim.delivery + 1, None)),
            "claim": chance.choice((target.sequence, target.sequence, target.sequence + 1, None)),
            "proof": chance.choice((got.assignment.proof, got.assignment.proof, invented)) if got else invented,
            "outcome": outcome,
            "result": FORGED if outcome == "completed" else None,
            "error": None if outcome == "completed" else Failure(type=FORGED, message=FORGED, retryable=False),
            "worker": claim.worker,
        }
        report = validated(Report, fields)
        await self._store(report)

    async def _garble(self) -> None:
        """Store bodies that are no reports, or those of another subject."""
        claims = self._claims()
        if not claims:
            return
        target = self._chance.choice(claims).message
        invented = f"{self._chance.getrandbits(64):016x}"
        about = f"report.{subjects.token(target.job)}.{target.execution_id}.completed.{subjects.token(target.step)}"
        subject = self._chance.choice(
            (f"{about}.{target.attempt}.{invented}.1", f"{about}.1.x.y", "report.x", f"{about}.>")
        )
        body = self._chance.choice(_BODIES)
        if self._received and self._chance.random() < 0.5:
            body = self._of_its_own(self._chance.choice(self._received), "completed", FORGED).encode()
        await self._send(subject, body, f"{NAME}-{self._chance.getrandbits(64):x}")

    async def _pretend(self) -> None:
        """Send a hold list with the id of another, which hands back its claims or ends."""
        others = sorted({listener.key[1] for listener in self._hall.listeners if listener.kind == "task"} - {self._id})
        if not others:
            return
        hold_list = HoldList(
            number=2**62 - self._chance.randint(0, 9),
            mode="draining",
            handed_back=tuple(claim.sequence for claim in self._claims()),
            ended=self._chance.random() < 0.5,
        )
        await self._channel.announce(NAME, self._chance.choice(others), hold_list.model_dump_json().encode())

    def _claims(self) -> list[Recorded[Started]]:
        claims = [found for kind in subjects.filters_of(Started) for found in at_once(self._server.read(kind))]
        newest = sorted(claims, key=lambda found: found.sequence)[-RECENT:]
        return [found for found in newest if isinstance(found.message, Started)]  # type: ignore[misc]

    def _events(self, of: Dispatched | Started) -> list[Recorded[Message]]:
        return at_once(self._server.read(subjects.execution(of.job, of.execution_id)))

    async def _store(self, report: Report) -> None:
        subject = subjects.subject_of(report)
        await self._send(subject, report.encode(), ids.report_id(report.proof or "", subject))

    async def _send(self, subject: str, body: bytes, message_id: str) -> None:
        store: Callable[[], int] = partial(self._server.receive, subject, body, message_id=message_id)
        while True:
            try:
                await self._log._ask(f"forge {subject}", store)
            except LogUnavailable:
                await self._process.wait(0.3)
            else:
                return


def _attempt(of: Dispatched | Started) -> tuple[str, str, int]:
    return of.execution_id, of.step, of.attempt


def _agent_id(chance: Random) -> str:
    digits = f"{chance.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def honest(reports: Sequence[Recorded[Message]]) -> list[Recorded[Message]]:
    """Return the reports that are not forged, which alone count for a rule."""
    return [recorded for recorded in reports if not _is_forged(recorded.message)]


def broken_by_forgery(everything: StoredEvents) -> Iterator[str]:
    """Yield each event that rests on a forged report, and each dead letter of one."""
    for recorded in everything.log:
        fact = recorded.message
        if _is_forged(fact):
            yield f"FORGED: it rests on a forged report: {recorded.subject} {recorded.sequence}"
        if isinstance(fact, PoisonMessage) and fact.subject.startswith("report."):
            yield f"FORGED: a dead letter of a forged report: {fact.subject}"


def _is_forged(message: Message) -> bool:
    return f'"{FORGED}"'.encode() in message.encode()
