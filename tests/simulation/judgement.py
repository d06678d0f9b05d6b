"""The invariants that must hold at the end, and the agreement of read models and log."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tests.domain.given import KEY
from tests.stored_events import StoredEvents
from tocsin import subjects
from tocsin.archive.stream_reader import decoded
from tocsin.domain import dead_letter, execution, history, ledger
from tocsin.domain.events import ExecutionFact, Message, Recorded
from tocsin.domain.job_record import Registration
from tocsin.engine import report_lists
from tocsin.ports import StoredMessage
from tocsin.subjects import Bucket, DecodeError, Stream
from tocsin.testing import InMemoryStoredLog

from .cast import Surroundings
from .commits import StoredCommits, untaken
from .forger import broken_by_forgery, honest
from .network import at_once
from .rules import beyond_the_audit


def everything(around: Surroundings) -> StoredEvents:
    """All that is stored."""
    kinds = {
        Stream.LEDGER: ("ledger.", "queue.", "agent.", "shards."),
        Stream.LOG: ("execution.", "lock.", "cron.", "dead-letter.", "ownership."),
        Stream.REPORTS: ("report.",),
        Stream.REQUESTS: ("trigger.", "cancel.", "enqueue."),
        Stream.INPUTS: ("public.", "outside."),
    }
    log = InMemoryStoredLog(around.server)
    found = {
        stream: [*_readable(one for one in at_once(_stored(log, stream)) if one.subject.startswith(prefixes))]
        for stream, prefixes in kinds.items()
    }
    ledger_, log_, reports, requests, inputs = found.values()
    return StoredCommits(ledger_, log_, reports, requests, inputs, around.commits.stored_at)


def _readable(messages: Iterable[StoredMessage]) -> Iterator[Recorded[Message]]:
    """Decode messages; reports may be anything, because any worker may store them."""
    for message in messages:
        try:
            if message.subject.startswith("report.list."):
                body = report_lists.decode(message.subject, message.body)
                yield from report_lists.listed(Recorded(body, message.subject, message.sequence, message.time))
            else:
                yield decoded(message)
        except DecodeError:
            if message.stream is not Stream.REPORTS:
                raise


async def _stored(log: InMemoryStoredLog, stream: Stream) -> list[StoredMessage]:
    upto = (await log.extent(stream)).last
    return [message async for portion in log.messages(stream, upto=upto) for message in portion]


def left_over(around: Surroundings) -> list[str]:
    """Return the work that is still to be done."""
    left = [f"{around.network.on_its_way} questions are on their way"] if around.network.on_its_way else []
    if around.commits.deliveries:
        left.append(f"{around.commits.deliveries} followers of commits lag")
    server = around.server
    left += [f"{d.spec.name} has {d.outstanding} messages" for d in server._durables.values() if not d.progress.is_idle]
    log = server._streams[Stream.LOG]
    left += untaken(around.commits, around.pure.values())
    left += [f"not shown yet: {one}" for one in wrong_definitions(around)]
    recorded = around.history.offset_now(Stream.LOG)
    if recorded != log.last_sequence and log.matching(("execution.>", "dead-letter.>"), recorded):
        left.append(f"recorded up to {recorded} of {log.last_sequence}")
    if left:
        return left
    everything_ = everything(around)
    for execution_id, facts in everything_.executions.items():
        state = execution.fold(facts)
        if not state.is_over:
            left.append(f"{execution_id} of {facts[0].message.job} is {state.status}")
    for job, changes in everything_.jobs.items():
        state_ = ledger.fold(changes)
        if undecided := ledger.decide_instants(state_, server.clock.now()):
            left.append(f"{job} has undecided time: {undecided[0]}")
    return left


def violations(around: Surroundings) -> list[str]:
    """Return every violation."""
    everything_ = everything(around)
    return [
        *dict.fromkeys(around.commits.violations),
        *(str(one) for one in everything_.audited(key=KEY).violations),
        *_wrong_history(around, everything_),
        *wrong_definitions(around),
        *broken_by_forgery(everything_),
        *beyond_the_audit(around, replace(everything_, reports=honest(everything_.reports))),
    ]


def _wrong_history(around: Surroundings, everything_: StoredEvents) -> list[str]:
    folded = history.fold({}, (r for r in everything_.log if isinstance(r.message, ExecutionFact)))
    letters = dead_letter.dead_letters(everything_.log)
    wrong = [
        f"I8: the history of {one} tells {around.history.executions.get(one)}, and the log {folded.get(one)}"
        for one in sorted(folded.keys() | around.history.executions.keys())
        if folded.get(one) != around.history.executions.get(one)
    ]
    if letters != around.history.dead_letters:
        wrong.append(f"I8: the history has other dead letters: {sorted(letters)}")
    return wrong


def is_registered(around: Surroundings) -> bool:
    """Whether every change of a definition was projected."""
    return not wrong_definitions(around)


def wrong_definitions(around: Surroundings) -> list[str]:
    """Definitions that are shown otherwise than the ledger has them."""
    shown = at_once(around.buckets.entries(Bucket.DEFINITIONS))
    wrong = []
    for job, changes in everything(around).jobs.items():
        registration = Registration.of(ledger.fold(changes))
        value = shown.get(subjects.token(job))
        if value != (registration.encode() if registration else None):
            wrong.append(f"I8: the definition of {job} is shown as {value!r}")
    return wrong
