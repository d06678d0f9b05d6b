"""What comes with a change: why, and on what condition (RFC 9110, If-Match on the sequence of the definition's last fact)."""

from typing import Annotated, Final, TypeAlias

from fastapi import Depends, Header
from pydantic import StringConstraints

from ....domain.definition import Text
from ....services.jobs import Check, Job
from .problems import Problem, invalid

MAX_REASON: Final = 1_000

Reason: TypeAlias = Annotated[
    Text | None,
    Header(alias="X-Reason", max_length=MAX_REASON, description="Why; it is recorded with the change."),
]
ReasonText: TypeAlias = Annotated[Text, StringConstraints(max_length=MAX_REASON)]


def etag(job: Job) -> str:
    """The version of a job's definition."""
    return f'"{job.sequence}"'


def _precondition(
    if_match: Annotated[
        str | None, Header(description="Only if the job is at this version (its `ETag`), or `*`: if there is one.")
    ] = None,
    if_none_match: Annotated[str | None, Header(description="`*`: only if there is no such job.")] = None,
) -> Check:
    if if_none_match not in {None, "*"}:
        raise invalid("If-None-Match", if_none_match, "must be `*`")
    expected = None if if_match is None else {tag.strip().removeprefix("W/") for tag in if_match.split(",")}

    def check(job: Job | None) -> None:
        if if_none_match == "*" and job is not None:
            raise _failed(job)
        if expected is not None and (job is None or not expected & {"*", etag(job)}):
            raise _failed(job)

    return check


def _failed(job: Job | None) -> Problem:
    now = f"it is at version {etag(job)} now" if job else "there is no such job"
    headers = {"ETag": etag(job)} if job else {}
    return Problem(412, "precondition-failed", f"the job is not as this request expects it: {now}", headers=headers)


Precondition: TypeAlias = Annotated[Check, Depends(_precondition)]


def both(*checks: Check) -> Check:
    """All of some checks, in order."""

    def check(job: Job | None) -> None:
        for one in checks:
            one(job)

    return check
