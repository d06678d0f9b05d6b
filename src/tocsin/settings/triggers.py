"""The settings of triggers: the streams whose messages may start executions."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Final, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from ..domain.definition import EventTrigger
from ..domain.definition.triggers import is_bucket, is_key_filter, is_subject
from ..domain.definition.webhook_fields import is_webhook_path
from ..domain.event_trigger import MAX_HOPS
from ..domain.secret_reference import check_allowed
from ..subjects import covers, overlap
from .fields import Duration, Section, Token, form, must

MAX_STREAMS: Final = 50
MAX_SUBJECTS: Final = 100
MAX_SECRETS: Final = 100
MAX_PATHS: Final = 100


def _secret(name: str) -> str:
    if name.endswith("*"):
        raise ValueError(f"{name!r} names a folder: name each secret")
    check_allowed([name])
    return name


StreamName: TypeAlias = Annotated[
    str, form(r"[A-Za-z0-9_-]{1,255}", "must be the name of a stream: letters, digits, hyphens and underscores")
]
BucketName: TypeAlias = Annotated[
    str, must(is_bucket, "must be the name of a bucket: letters, digits, hyphens and underscores")
]
OpenedKey: TypeAlias = Annotated[str, must(is_key_filter, "must be a filter over keys, such as `checkout.>` or `>`")]
OpenedKeys: TypeAlias = Annotated[tuple[OpenedKey, ...], Field(min_length=1, max_length=MAX_SUBJECTS)]
OpenedPath: TypeAlias = Annotated[
    str,
    must(
        lambda text: is_webhook_path(text.removesuffix("*") + "x" if text.endswith("/*") else text),
        "must be a path such as `/hooks/github`, or `/hooks/shop/*` for all directly below `/hooks/shop`",
    ),
]
OpenedPaths: TypeAlias = Annotated[tuple[OpenedPath, ...], Field(min_length=1, max_length=MAX_PATHS)]
OpenedSubject: TypeAlias = Annotated[
    str, must(is_subject, "must be a subject such as `orders.new` or `orders.>`, whose first token is a name")
]
OpenedSubjects: TypeAlias = Annotated[tuple[OpenedSubject, ...], Field(min_length=1, max_length=MAX_SUBJECTS)]


def _distinct(filters: tuple[str, ...]) -> tuple[str, ...]:
    for one, other in combinations(filters, 2):
        if overlap(one, other):
            raise ValueError(f"{one!r} and {other!r} have subjects in common: name each subject once")
    return filters


class Triggers(Section):
    """Events that may start executions."""

    streams: Annotated[dict[StreamName, OpenedSubjects], Field(max_length=MAX_STREAMS)] = {}  # noqa: RUF012 - pydantic copies it
    """The streams of programs by name, at most 50, each with the subjects that `triggers` of jobs may name.

    The event listener may read nothing else. A stream must be in the account of Tocsin's streams, and none of them."""
    subjects: Annotated[tuple[OpenedSubject, ...], Field(max_length=MAX_SUBJECTS), AfterValidator(_distinct)] = ()
    """The subjects, at most 100, that programs publish on and no stream has, and that `triggers` of jobs may name.

    The first makes `tocsin init` create a stream that captures their messages, so that none is lost while no event listener runs."""
    senders: Annotated[dict[Token, OpenedSubjects], Field(max_length=MAX_STREAMS)] = {}  # noqa: RUF012 - likewise
    """The programs outside, by their names in `programs` or `public`, that may publish on these subjects, each with those of its account."""
    max_bytes: Annotated[int, Field(ge=1_048_576)] = 268_435_456
    """Size of the stream of captured messages. A full stream drops its oldest messages. Each server reserves it."""
    max_age: Annotated[Duration, Field(ge=120)] = 86_400.0
    """Time for which captured messages are kept, at least two minutes."""
    webhooks: Annotated[dict[Annotated[str, AfterValidator(_secret)], OpenedPaths], Field(max_length=MAX_SECRETS)] = {}  # noqa: RUF012 - likewise
    """The secrets of webhooks, at most 100, each with the paths that `triggers` of jobs may name.

    A secret is the `NAME` of a variable of the API, or `file:/PATH` of a file there. The first makes `tocsin init` create a stream for requests to webhooks."""
    kv: Annotated[dict[BucketName, OpenedKeys], Field(max_length=MAX_STREAMS)] = {}  # noqa: RUF012 - likewise
    """The KV buckets of programs by name, at most 50, each with the keys that `triggers` of jobs may name."""
    objects: Annotated[tuple[BucketName, ...], Field(max_length=MAX_STREAMS)] = ()
    """The object stores of programs, at most 50, that `triggers` of jobs may name."""
    max_keys: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """The keys of one trigger with `debounce` that may wait, or be remembered for the day after their wait. Events of further keys stay in their
    stream until there is room."""

    max_hops: Annotated[int, Field(ge=0, le=1_000)] = MAX_HOPS
    """The executions that events may start one after the other, each by an event of the execution before it. An event at the end of a longer chain starts
    nothing, and is a dead letter (`too-many-hops`)."""

    @model_validator(mode="after")
    def _are_captured(self) -> Self:
        for program, filters in self.senders.items():
            for subject in filters:
                if not any(covers(each, subject) for each in self.subjects):
                    raise ValueError(
                        f"`senders.{program}` has `{subject}`, which no filter of `subjects` covers: add it there"
                    )
        return self

    @property
    def buckets(self) -> dict[str, tuple[str, ...]]:
        """The opened subjects of the streams of KV buckets and object stores."""
        entries = {f"KV_{name}": tuple(f"$KV.{name}.{key}" for key in keys) for name, keys in self.kv.items()}
        return entries | {f"OBJ_{name}": (f"$O.{name}.M.>",) for name in self.objects}


def stream_of(trigger: EventTrigger, opened: Mapping[str, Sequence[str]]) -> str | None:
    """Return the stream of a trigger; None: not exactly one stream is open for it."""
    streams = [
        stream
        for stream, filters in opened.items()
        if trigger.nats is not None
        and trigger.stream in {None, stream}
        and any(covers(each, trigger.nats) for each in filters)
    ]
    return streams[0] if len(streams) == 1 else None


def bucket_place(trigger: EventTrigger) -> tuple[str, str] | None:
    """Return the stream and the filter of a trigger on a bucket; None: another source."""
    bucket, rest = trigger.bucket
    if trigger.kv is not None:
        return f"KV_{bucket}", f"$KV.{bucket}.{rest}"
    return None if trigger.object is None else (f"OBJ_{bucket}", f"$O.{bucket}.M.>")
