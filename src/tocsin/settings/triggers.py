"""The settings of triggers: the streams whose messages may start executions."""

import re
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, Field

from ..domain.definition.triggers import is_subject
from .section import Section

MAX_STREAMS: Final = 50
MAX_SUBJECTS: Final = 100


def _stream(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,255}", text):
        raise ValueError("must be the name of a stream: letters, digits, hyphens and underscores")
    return text


def _subject(text: str) -> str:
    if not is_subject(text):
        raise ValueError("must be a subject such as `orders.new` or `orders.>`, whose first token is a name")
    return text


OpenedSubjects: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_subject)], ...], Field(min_length=1, max_length=MAX_SUBJECTS)
]


class Triggers(Section):
    """Events that may start executions."""

    streams: Annotated[
        dict[Annotated[str, AfterValidator(_stream)], OpenedSubjects], Field(max_length=MAX_STREAMS)
    ] = {}  # noqa: RUF012 - pydantic copies it
    """The streams of programs by name, at most 50, each with the subjects that `triggers` of jobs may name.

    The event listener may read nothing else. A stream must be in the account of Tocsin's streams, and none of them."""
