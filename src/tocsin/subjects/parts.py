"""What a subject says by itself."""

from .tokens import ANY, REST, name


def job_of(subject: str) -> str:
    """The job that a subject speaks of."""
    tokens = subject.split(".")
    if tokens[0] == "trigger":  # the public may write the dots of a name as they are
        return name(_written(*tokens[1:]))
    if tokens[0] == "cancel":
        return parse_cancel(subject)[0]
    if tokens[0] == "mq":
        return parse_completion(subject)[0] if tokens[1] == "scheduler" else name(".".join(tokens[2:]))
    return name(tokens[2 if tokens[0] == "cron" else 1])


def entity_of(subject: str) -> str:
    """What must be handled in order: the execution, else the job."""
    kind, job, *rest = subject.split(".", 3)
    if kind == "mq":
        return subject.rpartition(".")[2]
    if kind == "cancel":
        return "{}.{}".format(*parse_cancel(subject))
    return job if kind == "ledger" or not rest else f"{job}.{rest[0]}"


def event_type(subject: str) -> str:
    """What a subject of an execution says that happened."""
    return subject.split(".", 4)[3]


def parse_cancel(subject: str) -> tuple[str, str]:
    """The job and the execution that somebody asks to end; the public may write the dots of a name as they are."""
    *job, execution_id = subject.split(".")[1:]
    return name(_written(*job)), _written(execution_id)


def parse_completion(subject: str) -> tuple[str, str]:
    """The job and the execution that an answer from outside is about."""
    *job, execution_id = subject.split(".")[3:]  # the public may write the dots of a name as they are
    return name(_written(*job)), _written(execution_id)


def _written(*tokens: str) -> str:
    """What the public wrote. A server stores what is published under a wildcard, and one names as little as the other."""
    return ANY if tokens == (REST,) else ".".join(tokens)
