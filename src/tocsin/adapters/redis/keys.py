"""The keys of the history in Redis.

All keys have the same prefix, so that a database may be shared.

    tocsin:history:place:<installation>:<stream>   the last recorded sequence.
    tocsin:history:execution:<id>                  a hash with a field for each column.
    tocsin:history:dead-letter:<id>                the same.
    tocsin:history:jobs                            a hash of JSON by job name.
    tocsin:history:retentions                      a hash of seconds, for jobs with their own retention.
    tocsin:history:executions…                     sorted sets of ids: all, by condition, and by order.
    tocsin:history:dead-letters…                   the same.

Sets are scored by scheduled time (dead letters by last attempt) in microseconds since 1970. A score is exact until the
year 2255. `:started` and `:duration` (milliseconds) are scored by what their names say.
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
    """Return the key of the offset in a stream of an installation."""
    return f"{ROOT}:place:{installation}:{stream.value}"


def execution(execution_id: str) -> str:
    """Return the key of an execution's hash."""
    return f"{ROOT}:execution:{execution_id}"


def dead_letter(letter_id: str) -> str:
    """Return the key of a dead letter's hash."""
    return f"{ROOT}:dead-letter:{letter_id}"


def executions_by(field: str, value: str) -> str:
    """Return the set of executions with a `job`, `status`, `trigger` or `tag`."""
    return f"{EXECUTIONS}:{field}:{value}"


def dead_letters_of(job: str) -> str:
    """Return the set of a job's dead letters."""
    return f"{DEAD_LETTERS}:job:{job}"
