"""References to messages of several partitions, which count their sequences separately."""

from typing import Final

from typing_extensions import override

from tests.domain.given import NOON
from tocsin import subjects
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Message, PoisonMessage, Recorded, Trigger
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.services.audit.requests import TRIGGERS, Requests
from tocsin.testing import InMemoryEventLog

JOBS: Final = ("here", "there")


class TwoPartitions(InMemoryEventLog):
    """A log with a partition for each job."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions = {job: InMemoryEventLog(self.clock) for job in JOBS}

    @override
    async def get(self, subject: str, sequence: int) -> Recorded[Message] | None:
        return await self.partitions[subjects.job_of(subject)].get(subject, sequence)


async def test_definitions_of_two_jobs_share_a_sequence() -> None:
    log = TwoPartitions()
    sequences = {
        await log.partitions[job].append(Defined(definition=JobDefinition(name=job, function=job), job=job), expect=0)
        for job in JOBS
    }
    assert sequences == {1}
    ledgers = LedgerReader(log)

    for _ in range(2):  # the second time, from the cache
        assert [(await ledgers.definition(job, 1)).function for job in JOBS] == list(JOBS)


def test_refusal_answers_the_trigger_of_its_job_only() -> None:
    requests = Requests()
    handlers = requests.handlers()
    for job in JOBS:
        trigger = Recorded(Trigger(), subjects.trigger(job), 1, NOON, None)
        assert list(handlers[Trigger](trigger)) == []
    letter = PoisonMessage.of("here", TRIGGERS, subjects.trigger("here"), 1, b"", "no such job")

    assert list(handlers[PoisonMessage](Recorded(letter, subjects.subject_of(letter), 2, NOON, None))) == []

    (debt,) = requests.debts()
    assert (debt.invariant, debt.entity) == ("I2", "job there")


def test_id_of_a_poison_message_names_the_partition() -> None:
    letters = [PoisonMessage.of("j", TRIGGERS, "trigger.j", 7, b"", "", partition=number) for number in (0, 3)]
    assert [(letter.id, letter.partition) for letter in letters] == [
        ("planner-triggers-0-7", 0),
        ("planner-triggers-3-7", 3),
    ]
