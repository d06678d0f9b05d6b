"""The AsyncAPI 3 document of every public subject.

Message schemas come from the event classes, subjects from `tocsin.subjects`. The document speaks from Tocsin's side, as
AsyncAPI requires: an operation `receive` is a subject that a program publishes to.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from tocsin.adapters.nats.client.names import Names
from tocsin.domain import events
from tocsin.domain.formats.cloud_events import headers_of

_EXECUTION: Final = "019b76da-a800-76fb-abdc-caef73f35cd6"
_INSTANT: Final = "2026-02-12T14:00:00Z"
_PARAMETERS: Final = {
    "job": "Name of the job. A character that a NATS subject cannot hold is percent-encoded.",
    "execution_id": "Id of the execution (a UUID of version 7).",
    "trigger_id": "The trigger's `Nats-Msg-Id`, percent-encoded except for letters, digits, `-`, `_` and `~`. Without an id, or with "
    "one that is longer than 128 characters then: `seq-` and the sequence that the server acknowledged. Before it may be the name of the program's account, "
    "or `api`, and a dot: subscribe with `>` in its place.",
}


@dataclass(frozen=True, slots=True)
class PublicSubject:
    """A subject, its message class, and an example of the message."""

    subject: str
    """As on the wire with the default names; parameters in braces."""
    action: Literal["send", "receive"]
    """From Tocsin's side."""
    message: type[events.Message]
    title: str
    description: str
    example: dict[str, Any]

    @property
    def key(self) -> str:
        """The name of the channel in the document."""
        return self.subject.split("{", 1)[0].strip(".").replace(".", "-")


_NAMES: Final = Names()
_ATTRIBUTES: Final = {
    "ce-specversion": "The version of CloudEvents.",
    "ce-id": "The id of the event. A second copy of an event has the same id and source.",
    "ce-source": "The installation: a slash and its `root`.",
    "ce-type": "The type: `org.openjobspec.` and an event of ojs-cron, or `org.openjobspec.x.` and an event of Tocsin alone.",
    "ce-time": "The time (UTC) of the event.",
    "ce-subject": "The id of the execution, or the name of the job if it has no execution.",
    "ce-datacontenttype": "The media type of the body.",
    "ce-traceparent": "The trace of the execution (the extension for distributed tracing). It is absent if no trace is made.",
}
"""The headers of public events: CloudEvents in the binary content mode of its protocol binding for NATS."""

PUBLIC_SUBJECTS: Final = (
    PublicSubject(
        f"{_NAMES.trigger_prefix}.{{job}}",
        "receive",
        events.Trigger,
        "Run a job",
        "Publish to run a registered job now. The body may be empty. An object with none of these fields is the input "
        "itself; an object with one of them is not, and its other fields are ignored. `priority` and `traceparent` count only beside another "
        "of them, such as `input`, because inputs often have such keys. The planner admits the execution by "
        "the definition in force then, or records why not. `by` is ignored, and `backfill` is refused: only the API "
        "backfills. JetStream acknowledges the message after it is stored; send a `Nats-Msg-Id` header to publish again "
        "safely. If the installation has `screener.enabled`, the screener acknowledges it in the same form, and all headers but this and "
        "`traceparent` are ignored.",
        {"input": {"day": "2026-02-11"}, "reason": "late delivery of the source files"},
    ),
    PublicSubject(
        f"{_NAMES.cancel_prefix}.{{job}}.{{execution_id}}",
        "receive",
        events.CancelRequest,
        "Cancel an execution",
        "Publish to end an execution. The body may be empty. An execution that is already over stays as it is. The id of "
        "an occurrence that runs on several shards ends its execution on each. `by` is "
        "ignored.",
        {"reason": "wrong input"},
    ),
    PublicSubject(
        f"{_NAMES.public_prefix}.triggered.{{job}}",
        "send",
        events.CronTriggered,
        "An occurrence fired",
        "Published once for each execution of a registered job, by its schedule or a trigger (ojs-cron §9.1). `job_id` is the execution's id.",
        {
            "event": "cron.triggered",
            "timestamp": "2026-02-12T14:00:00.123Z",
            "data": {
                "cron_name": "daily-report",
                "cron_expression": "0 9 * * *",
                "timezone": "America/New_York",
                "job_id": _EXECUTION,
                "job_type": "report.generate",
                "run_count": 43,
                "scheduled_time": _INSTANT,
                "actual_time": "2026-02-12T14:00:00.123Z",
            },
        },
    ),
    PublicSubject(
        f"{_NAMES.public_prefix}.skipped.{{job}}",
        "send",
        events.CronSkipped,
        "An occurrence was skipped",
        "Published once for each occurrence that did not become an execution, with the reason (ojs-cron §9.2).",
        {
            "event": "cron.skipped",
            "timestamp": "2026-02-12T14:00:00.456Z",
            "data": {
                "cron_name": "daily-report",
                "cron_expression": "0 9 * * *",
                "timezone": "America/New_York",
                "reason": "overlap_skip",
                "active_job_id": _EXECUTION,
                "scheduled_time": _INSTANT,
            },
        },
    ),
    PublicSubject(
        f"{_NAMES.public_prefix}.missed.{{job}}",
        "send",
        events.CronMissed,
        "Occurrences passed without firing",
        "Published once for each span of occurrences that passed although the job was active: no ticker led in "
        "time, or a late decision met another schedule.",
        {
            "event": "cron.missed",
            "timestamp": "2026-02-12T15:10:00Z",
            "data": {
                "cron_name": "daily-report",
                "cron_expression": "*/10 * * * *",
                "timezone": "America/New_York",
                "reason": "missed",
                "count": 6,
                "start": _INSTANT,
                "until": "2026-02-12T15:00:00Z",
            },
        },
    ),
    PublicSubject(
        f"{_NAMES.public_prefix}.alert.{{job}}",
        "send",
        events.CronAlert,
        "A notification of a job",
        "Published for each notification whose channel has the type `nats`. `others` notifications were grouped with it. No stream "
        "stores it; after a crash it may come twice, with the same `id`.",
        {
            "event": "cron.alert",
            "timestamp": "2026-02-12T14:05:00.123Z",
            "data": {
                "cron_name": "daily-report",
                "id": "019b76da-a800-7c5e-9f54-0c4cf3a0a4b1",
                "channel": "nats",
                "kind": "failed",
                "job_id": _EXECUTION,
                "reason": "TimeoutError: did not finish within 300s",
                "why": "trigger cron, scheduled for 2026-02-12T14:00:00Z\nstep main failed at attempt 3",
                "others": 0,
                "other_jobs": [],
            },
        },
    ),
    PublicSubject(
        f"{_NAMES.public_prefix}.answer.{{job}}.{{trigger_id}}",
        "send",
        events.CronAnswer,
        "A trigger did not start at once",
        "Published once for a trigger that waits for its job's lock, is skipped, or is refused. A run that waits for other jobs or for "
        "acknowledgements has a second answer if it is skipped in the end. An answer repeats nothing of the trigger's input.",
        {
            "event": "cron.answer",
            "timestamp": "2026-02-12T14:00:00.456Z",
            "data": {
                "cron_name": "daily-report",
                "trigger_id": "order-17",
                "answer": "queued",
                "code": "lock_held",
                "job_id": "01a204ff-f508-79d0-b7e6-7b60cd2f3801",
                "active_job_id": _EXECUTION,
                "dead_letter": None,
            },
        },
    ),
    PublicSubject(
        _NAMES.to_wire("mq.scheduled.{job}"),
        "send",
        events.Envelope,
        "A task for an executor of hip-62",
        "A task of a queue whose `transport` is `mq` (hip-62, Integration with MQ). It is delivered at least once.",
        {
            "schema": "hanzo.mq.v1",
            "id": f"{_EXECUTION}-extract-1",
            "type": "scheduler.execute",
            "source": "scheduler",
            "timestamp": _INSTANT,
            "data": {
                "job_name": "daily-report",
                "execution_id": _EXECUTION,
                "function": "report/generate",
                "input": {"day": "2026-02-11"},
                "attempt": 1,
                "timeout": 300,
                "step": "main",
                "token": "v1.4rJ0mV3x",
                "scheduled_time": _INSTANT,
                "trigger": "cron",
                "fence": 4711,
            },
        },
    ),
    PublicSubject(
        _NAMES.to_wire("mq.scheduler.cancel.{job}.{execution_id}"),
        "send",
        events.MqCancel,
        "An execution needs no more work",
        "Published when an execution ends whose task is handed over and not answered: it was cancelled, took too long, or "
        "expired. Its tasks leave the queue. The stream keeps the notice for five minutes.",
        {
            "schema": "hanzo.mq.v1",
            "id": f"cancel_{_EXECUTION}",
            "type": "scheduler.cancel",
            "source": "scheduler",
            "timestamp": "2026-02-12T14:00:04Z",
            "data": {
                "job_name": "daily-report",
                "execution_id": _EXECUTION,
                "steps": ["main"],
                "status": "cancelled",
                "reason": "wrong input",
            },
        },
    ),
    PublicSubject(
        _NAMES.to_wire("mq.scheduler.complete.{job}.{execution_id}"),
        "receive",
        events.Completion,
        "The answer of an executor of hip-62",
        "The outcome of a task from `mq.scheduled.<job>`, as these fields or inside an envelope `hanzo.mq.v1`. An answer "
        "without a recognized status is never a success: it becomes a dead letter with a code, and the attempt stays open "
        "until its timeout. Without a step or an attempt, the current one is meant. A token, if present, must be the "
        "task's.",
        {
            "schema": "hanzo.mq.v1",
            "id": f"done-{_EXECUTION}-1",
            "type": "scheduler.complete",
            "source": "functions-7",
            "timestamp": "2026-02-12T14:00:04Z",
            "data": {
                "job_name": "daily-report",
                "execution_id": _EXECUTION,
                "status": "completed",
                "attempt": 1,
                "result": {"rows": 42},
            },
        },
    ),
)


def document(version: str) -> dict[str, Any]:
    """Return the whole document."""
    schemas: dict[str, Any] = {}
    for public in PUBLIC_SUBJECTS:
        schema = TypeAdapter(public.message).json_schema(
            mode="validation", by_alias=True, ref_template="#/components/schemas/{model}"
        )
        schemas |= schema.pop("$defs", {})
        schemas[public.message.__name__] = schema
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tocsin",
            "version": version,
            "description": "The subjects on NATS that programs outside Tocsin use, with the default prefixes "
            "(`nats.trigger_prefix`, `nats.public_prefix`, `nats.mq_prefix`). Bodies are JSON. The HTTP API has its own "
            "document, openapi.json; with `server.over_nats` its operations are also at `tocsin.api.<operation>`.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {public.key: _channel(public) for public in PUBLIC_SUBJECTS},
        "operations": {_operation_name(public): _operation(public) for public in PUBLIC_SUBJECTS},
        "components": {
            "messages": {public.message.__name__: _message(public) for public in PUBLIC_SUBJECTS},
            "schemas": dict(sorted(schemas.items())),
        },
    }


def as_markdown() -> Iterator[str]:
    """Yield the lines of the reference page: a section for each subject."""
    for public in PUBLIC_SUBJECTS:
        direction = "Programs publish it" if public.action == "receive" else "Programs subscribe to it"
        subject = public.subject.replace("{", "<").replace("}", ">")
        yield from (f"## `{subject}`", "", f"{public.title}. {direction}.", "", public.description, "")
        yield from ("| field | type | required | meaning |", "|---|---|---|---|")
        yield from _rows(TypeAdapter(public.message).json_schema(mode="validation", by_alias=True))
        events.validated(public.message, public.example)
        yield from ("", "```json", json.dumps(public.example, indent=2), "```", "")
        if headers := _headers(public):
            yield from ("As a CloudEvent it has these headers, percent-encoded where CloudEvents says so:", "")
            yield from ("```text", *(f"{name}: {value}" for name, value in headers.items()), "```", "")


def _rows(schema: dict[str, Any], prefix: str = "", definitions: dict[str, Any] | None = None) -> Iterator[str]:
    definitions = definitions or schema.get("$defs", {})
    for name, field in schema.get("properties", {}).items():
        inner = definitions.get(str(field.get("$ref", "")).rpartition("/")[2])
        required = "yes" if name in schema.get("required", ()) else ""
        meaning = field.get("description", (inner or {}).get("description", "")).replace("\n", " ")
        yield f"| `{prefix}{name}` | {_type(field, definitions)} | {required} | {meaning} |"
        if inner is not None and "properties" in inner:
            yield from _rows(inner, f"{prefix}{name}.", definitions)


def _type(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(option, definitions) for option in field["anyOf"]))
    if "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        return "any JSON" if name == "JsonValue" else _type(definitions[name], definitions)
    kind = str(field.get("type", "any JSON"))
    return f"{kind} ({field['format']})" if "format" in field else kind


def _channel(public: PublicSubject) -> dict[str, Any]:
    parameters = {name: {"description": _PARAMETERS[name]} for name in re.findall(r"{(\w+)}", public.subject)}
    name = public.message.__name__
    return {
        "address": public.subject,
        "title": public.title,
        "description": public.description,
        "parameters": parameters,
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
    }


def _operation_name(public: PublicSubject) -> str:
    return f"{public.action}-{public.key}"


def _operation(public: PublicSubject) -> dict[str, Any]:
    message = f"#/channels/{public.key}/messages/{public.message.__name__}"
    return {
        "action": public.action,
        "title": public.title,
        "channel": {"$ref": f"#/channels/{public.key}"},
        "messages": [{"$ref": message}],
    }


def _message(public: PublicSubject) -> dict[str, Any]:
    example, headers = {"name": public.key, "payload": public.example}, _headers(public)
    message = {
        "name": public.message.__name__,
        "title": public.title,
        "contentType": "application/json",
        "payload": {"$ref": f"#/components/schemas/{public.message.__name__}"},
        "examples": [example],
    }
    if headers is None:
        return message
    fields = {name: {"type": "string", "description": meaning} for name, meaning in _ATTRIBUTES.items()}
    example["headers"] = headers
    return message | {"headers": {"type": "object", "required": [*headers], "properties": fields}}


def _headers(public: PublicSubject) -> dict[str, str] | None:
    """Return the headers of a message's example; None: only public events and notifications have headers."""
    event = TypeAdapter[events.Message](public.message).validate_python(public.example)
    return (
        dict(headers_of(event, f"/{_NAMES.root}")) if isinstance(event, events.PublicEvent | events.CronAlert) else None
    )
