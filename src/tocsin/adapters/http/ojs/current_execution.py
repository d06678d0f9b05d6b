"""From the id of a job to the execution that stands for it now.

A dead letter that is retried makes a new execution, which a client of the Open Job Spec goes on calling by the old id. A step
of a graph is called by its execution's id and its own name, `<execution>:<step>`.
"""

from .... import subjects
from ....archive.stream_reader import wherever
from ....domain import dead_letter, execution
from ....domain.execution import Status
from ....ports import EventLog, StoredLog
from ....services.operations import lookup
from ....services.operations.lookup import ExecutionMatch


async def find(log: EventLog, id: str, stored: StoredLog | None = None) -> ExecutionMatch:  # noqa: A002 - the field is called so
    """The newest execution of a job; what the log holds no more is found in what was ever stored (`stored`).

    Raises:
        NotFound: there is none.
        NotAnId: no id looks like this.
    """
    found = await lookup.find(log, id.partition(":")[0], stored=stored)
    while execution.fold(found.facts).status is Status.FAILED:
        state = dead_letter.fold(await wherever(log, stored, subjects.dead_letter(found.job, found.execution_id)))
        if not state.replays:
            break
        newest = state.replays[-1].execution_id
        facts = await wherever(log, stored, subjects.execution(found.job, newest))
        if not facts:
            break
        found = ExecutionMatch(found.job, newest, tuple(facts))
    return found
