"""The events that start executions of a job."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from .. import cel
from .errors import DefinitionProblem, excess, show
from .fields import Name, Seconds, StoredModel, Text
from .webhook_fields import Signature, SignatureScheme, webhook_problems

MAX_TRIGGERS: Final = 20
"""The largest number of triggers of a job."""
MAX_MAPPINGS: Final = 50
"""The largest number of keys that a trigger maps into the input."""
_SUBJECT: Final = re.compile(r"[^\s.*>]+(?:\.(?:\*|[^\s.*>]+))*(?:\.>)?")
_MAX_SUBJECT: Final = 255
_OF_THE_SERVER: Final = ("$", "_INBOX", "_R_.", "_GR_.")
"""The beginnings of subjects of the server: of its API, and of answers."""
_STREAM: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
_SOURCES: Final = ("nats", "job", "webhook", "kv", "object")
_FIELDS_OF: Final = {
    "stream": "nats",
    "on": "job",
    **dict.fromkeys(("secret", "signature", "signature_header", "delivery_header"), "webhook"),
}
"""The fields of a single source."""
MAX_BATCH: Final = 500
MIN_WITHIN_S: Final = 0.1
MAX_WITHIN_S: Final = 600.0
DEBOUNCE_FACTOR: Final = 10
MIN_QUIET_S: Final = 1.0
MAX_DEBOUNCE_S: Final = 86_400.0
_KEY_TYPES: Final = frozenset({"STRING", "INT", "UINT", "DYN"})
_BUCKET: Final = re.compile("[A-Za-z0-9_-]{1,240}")
_PART: Final = r"(?:\*|[A-Za-z0-9_=/-]+)"
_KEYS: Final = re.compile(rf">|{_PART}(?:\.{_PART})*(?:\.>)?")
_MAX_KEYS: Final = 255
_MAX_PREFIX: Final = 1_000

Source: TypeAlias = tuple[str, ...]
"""The identity of a source among those of a job."""


def is_bucket(name: str) -> bool:
    return _BUCKET.fullmatch(name) is not None


def is_key_filter(text: str) -> bool:
    """Return whether a text is a filter over keys of a KV bucket."""
    return len(text) <= _MAX_KEYS and _KEYS.fullmatch(text) is not None


def split(place: str) -> tuple[str, str]:
    """Return the bucket, and the rest: a filter over keys, or a prefix of names."""
    bucket, _, rest = place.partition("/")
    return bucket, rest


class Debounce(StoredModel):
    """The quiet time after which the events of a key start one execution."""

    quiet: Seconds
    """The time without an event of the key after which the execution starts, such as `30s`."""
    at_most: Seconds | None = None
    """The longest time from the first event until the execution starts. None: ten times `quiet`."""

    @property
    def longest(self) -> float:
        """The longest time in seconds from the first event until the execution starts."""
        return self.quiet * DEBOUNCE_FACTOR if self.at_most is None else self.at_most


class Batch(StoredModel):
    """Many events that start one execution together."""

    max: int = Field(ge=1, le=MAX_BATCH, strict=True)
    """The most events of a batch, at most 500."""
    within: Seconds
    """The longest time that the first event waits for others, such as `5s`."""


def _debounce(value: object) -> object:
    return {"quiet": value} if isinstance(value, str | int | float) and not isinstance(value, bool) else value


class EventTrigger(StoredModel):
    """Events of one source, each of which may start an execution.

    Conditions and mappings are expressions in CEL over `body` (the JSON of the event), `subject`, `headers` and `time`; with `kv` also
    over `operation`, `key` and `revision`, and with `object` over `operation` and `object`.
    """

    nats: Text | None = None
    """The subject of messages in a JetStream stream; it may have wildcards. A trigger has exactly one source: this, `job`, `webhook`, `kv` or `object`."""
    stream: Text | None = None
    """The stream of these messages. None: the only stream that the settings open for this subject."""
    job: Name | None = None
    """The job whose ended executions are the events."""
    on: Literal["completed", "failed", "finished"] = "completed"
    """The ends of these executions that count; `finished`: completed, failed or cancelled."""
    webhook: Text | None = None
    """The path of the API to which another program sends signed requests, such as `/hooks/github`."""
    secret: Text | None = None
    """The secret of these signatures: `${env:NAME}` or `${file:/PATH}` of the API. None: the only secret that the settings open for the path."""
    signature: Signature = "hmac-sha256"
    """The method by which the sender signs these requests."""
    signature_header: Text | None = None
    """The header with the signature of `hmac-sha256`; None: `X-Hub-Signature-256`."""
    delivery_header: Text | None = None
    """The header with the identity of a request, which is its key without `key`. None: `X-GitHub-Delivery`, or the `webhook-id` of `standard-webhooks`."""
    kv: Text | None = None
    """The entries of a KV bucket whose changes are the events, such as `flags/checkout.>`."""
    object: Text | None = None
    """The objects of a bucket whose uploads and deletions are the events: `uploads`, or with the beginning of their names `uploads/invoices/`."""
    when: Text | None = None
    """The condition, such as `body.total > 100`; None: each event starts an execution."""
    input: dict[str, Text] = {}
    """Keys that override the job's input, each with the expression for its value."""
    key: Text | None = None
    """The expression for the key of an event: all events with one key start one execution. None: each event has its own."""
    record: Literal["matches", "all"] = "matches"
    """The events that start nothing and are recorded: those that match the condition, or all."""
    debounce: Annotated[
        Debounce | None, BeforeValidator(_debounce, json_schema_input_type=Debounce | float | str | None)
    ] = None
    """Start one execution after the events of a key, by the last of them. None: by the first, at once."""
    batch: Batch | None = None
    """Start one execution for several events: its input has the list `events`, with the `input` of each. None: one for each event."""

    @property
    def source(self) -> Source:
        """The identity of this source among those of the job."""
        for kind in ("webhook", "kv", "object"):
            if (place := getattr(self, kind)) is not None:
                return (kind, place)
        return ("job", self.job or "", self.on) if self.nats is None else ("nats", self.nats, self.stream or "")

    @property
    def source_text(self) -> str:
        """The source as the definition writes it; a job with the end of its executions."""
        return self.nats or self.webhook or self.kv or self.object or f"{self.job} {self.on}"

    @property
    def kind(self) -> str:
        """The kind of its source: the field that names it."""
        return self.source[0]

    @property
    def bucket(self) -> tuple[str, str]:
        """The bucket, and a filter over its keys or a prefix of its names.

        Both are empty if the trigger has another source.
        """
        return split(self.kv or self.object or "")

    @property
    def scheme(self) -> SignatureScheme:
        return SignatureScheme(self.signature, self.signature_header, self.delivery_header)


def _listed(value: object) -> object:
    if isinstance(value, dict):
        raise PydanticCustomError("list_type", "must be a list of triggers, such as [{nats: orders.>}]")
    return value


Triggers: TypeAlias = Annotated[
    tuple[EventTrigger, ...], BeforeValidator(_listed, json_schema_input_type=tuple[EventTrigger, ...])
]


def trigger_problems(job: str, triggers: Sequence[EventTrigger]) -> Iterator[DefinitionProblem]:
    """Yield the problems of a job's triggers; each expression is compiled."""
    advice = "let one subject with wildcards name several"
    if too_many := excess(len(triggers), "triggers", MAX_TRIGGERS, "triggers", advice):
        yield from too_many
        return
    sources: set[Source] = set()
    for number, trigger in enumerate(triggers):
        for problem in (
            *_source_problems(job, trigger),
            *_expression_problems(trigger),
            *_debounce_problems(trigger.debounce),
            *_batch_problems(trigger),
        ):
            yield replace(problem, field=f"triggers.{number}{problem.field and '.'}{problem.field}")
        if trigger.source in sources:
            reason = "another trigger of this job has the same source: join their conditions with `||`"
            yield DefinitionProblem(reason, field=f"triggers.{number}", code="duplicate-trigger")
        sources.add(trigger.source)


def _source_problems(job: str, trigger: EventTrigger) -> Iterator[DefinitionProblem]:
    given = [name for name in _SOURCES if getattr(trigger, name) is not None]
    if len(given) != 1:
        code = "exclusive-fields" if given else "required"
        yield DefinitionProblem(f"give exactly one of {', '.join(f'`{name}`' for name in _SOURCES)}", code=code)
        return
    for name, source in _FIELDS_OF.items():
        if source != given[0] and getattr(trigger, name) != EventTrigger.model_fields[name].default:
            reason = f"belongs to `{source}`: leave it out"
            yield DefinitionProblem(reason, field=name, code="exclusive-fields")
    if trigger.job == job:
        reason = "a job cannot start itself: its executions would never end"
        yield DefinitionProblem(reason, field="job", value=show(trigger.job), code="dependency-cycle")
    if trigger.nats is not None:
        yield from _nats_problems(trigger.nats, trigger.stream)
    bucket, within = trigger.bucket
    if trigger.kv is not None and not (is_bucket(bucket) and is_key_filter(within)):
        reason = "must be a bucket and a filter over its keys, such as `flags/checkout.>` or `flags/>`"
        yield DefinitionProblem(reason, field="kv", value=show(trigger.kv), code="invalid-value")
    if trigger.object is not None and not (is_bucket(bucket) and len(within) <= _MAX_PREFIX):
        reason = "must be a bucket, or a bucket and the beginning of names, such as `uploads` or `uploads/invoices/`"
        yield DefinitionProblem(reason, field="object", value=show(trigger.object), code="invalid-value")
    if trigger.webhook is not None:
        yield from webhook_problems(trigger.webhook, trigger.secret, trigger.scheme, has_key=trigger.key is not None)


def is_subject(text: str) -> bool:
    """Return whether a text is a subject or a filter of messages of programs."""
    return len(text) <= _MAX_SUBJECT and _SUBJECT.fullmatch(text) is not None and not text.startswith(_OF_THE_SERVER)


def _nats_problems(subject: str, stream: str | None) -> Iterator[DefinitionProblem]:
    if not is_subject(subject):
        reason = (
            f"must be a subject of at most {_MAX_SUBJECT} characters, such as `orders.new`, `orders.*.paid` or `orders.>`; "
            "its first token is a name, and not one of the server"
        )
        yield DefinitionProblem(reason, field="nats", value=show(subject), code="invalid-subject")
    if stream is not None and not _STREAM.fullmatch(stream):
        reason = "must be the name of a stream: letters, digits, hyphens and underscores"
        yield DefinitionProblem(reason, field="stream", value=show(stream), code="invalid-value")


def _batch_problems(trigger: EventTrigger) -> Iterator[DefinitionProblem]:
    batch = trigger.batch
    if batch is None:
        return
    if not MIN_WITHIN_S <= batch.within <= MAX_WITHIN_S:
        reason = "must be from 0.1 seconds to 10 minutes, such as `5s`"
        yield DefinitionProblem(reason, field="batch.within", value=show(batch.within), code="out-of-range")
    for field, value in (("key", trigger.key), ("debounce", trigger.debounce)):
        if value is not None:
            reason = f"a batch takes each event once: leave out `{field}` or `batch`"
            yield DefinitionProblem(reason, field=field, code="exclusive-fields")
    if not trigger.input:
        reason = "the execution of a batch gets only what `input` names of each event, such as {order: body.id}"
        yield DefinitionProblem(reason, field="input", code="required")


def _debounce_problems(debounce: Debounce | None) -> Iterator[DefinitionProblem]:
    if debounce is None:
        return
    if not MIN_QUIET_S <= debounce.quiet <= MAX_DEBOUNCE_S:
        reason = "must be from 1 second to 1 day, such as `30s`"
        yield DefinitionProblem(reason, field="debounce.quiet", value=show(debounce.quiet), code="out-of-range")
    elif debounce.at_most is not None and not debounce.quiet <= debounce.at_most <= MAX_DEBOUNCE_S:
        reason = "must be at least `quiet`, and at most 1 day"
        yield DefinitionProblem(reason, field="debounce.at_most", value=show(debounce.at_most), code="out-of-range")


def _expression_problems(trigger: EventTrigger) -> Iterator[DefinitionProblem]:
    advice = "map an object as a whole, such as `body.order`"
    if too_many := excess(len(trigger.input), "keys", MAX_MAPPINGS, "input", advice):
        yield from too_many
        return
    fields = {"when": trigger.when, "key": trigger.key, **{f"input.{key}": text for key, text in trigger.input.items()}}
    for field, text in fields.items():
        if text is None:
            continue
        try:
            type_ = cel.compile_(text, trigger.kind).type
        except cel.ExpressionError as error:
            yield DefinitionProblem(str(error), field=field, value=show(text), code=error.code)
            continue
        if field == "when" and type_ not in {"BOOL", "DYN"}:
            reason = f"must be true or false, and is of the type {type_}: compare it, such as `{text} == …`"
            yield DefinitionProblem(reason, field=field, value=show(text), code="invalid-expression")
        if field == "key" and type_ not in _KEY_TYPES:
            reason = f"must be a text or an integer, and is of the type {type_}: write a field such as `body.id`"
            yield DefinitionProblem(reason, field=field, value=show(text), code="invalid-expression")
