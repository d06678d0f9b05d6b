"""How everything is named in Redis. Every key begins alike, so that a database may be shared.

    tocsin:history:place:<installation>:<stream>   the last sequence that is folded in
    tocsin:history:execution:<id>                  a hash, one field for each column
    tocsin:history:dead-letter:<id>                the same
    tocsin:history:jobs                            a hash of JSON by name
    tocsin:history:retentions                      a hash of seconds, of the jobs that have a retention of their own
    tocsin:history:executions…                     sorted sets of ids: all, and by what lists are narrowed down and sorted
    tocsin:history:dead-letters…

Sets are scored by scheduled time (of dead letters: by last attempt) in microseconds since 1970, which a score holds to the
last digit until the year 2255; `:started` and `:duration` (milliseconds) are scored by what they are called.
"""

from typing import Final

from ...subjects import Stream

ROOT: Final = "tocsin:history"
SCHEMA: Final = f"{ROOT}:schema"
JOBS: Final = f"{ROOT}:jobs"
RETENTIONS: Final = f"{ROOT}:retentions"

EXECUTIONS: Final = f"{ROOT}:executions"
STARTED: Final = f"{EXECUTIONS}:started"
DURATION: Final = f"{EXECUTIONS}:duration"
WITH_ERROR: Final = f"{EXECUTIONS}:error"
EXECUTION_IDS: Final = f"{EXECUTIONS}:ids"

DEAD_LETTERS: Final = f"{ROOT}:dead-letters"
UNRESOLVED: Final = f"{DEAD_LETTERS}:unresolved"
DEAD_LETTER_IDS: Final = f"{DEAD_LETTERS}:ids"


def place(installation: str, stream: Stream) -> str:
    """The place in a stream of an installation."""
    return f"{ROOT}:place:{installation}:{stream.value}"


def execution(execution_id: str) -> str:
    """The hash of an execution."""
    return f"{ROOT}:execution:{execution_id}"


def dead_letter(letter_id: str) -> str:
    """The hash of a dead letter."""
    return f"{ROOT}:dead-letter:{letter_id}"


def executions_by(field: str, value: str) -> str:
    """The executions whose `job`, `status`, `trigger` or `tag` is a value."""
    return f"{EXECUTIONS}:{field}:{value}"


def dead_letters_of(job: str) -> str:
    """The dead letters of a job."""
    return f"{DEAD_LETTERS}:job:{job}"
