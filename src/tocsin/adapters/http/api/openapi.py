"""The parts of the OpenAPI document that FastAPI cannot derive from handlers (`schemas/openapi.json`)."""

from collections.abc import Iterable
from typing import Any

from fastapi.routing import APIRoute

from ....domain.definition import JobDefinition
from ....domain.formats import ojs
from ..middleware.idempotency import HEADER as IDEMPOTENCY_KEY
from ..middleware.idempotency import MAX_KEY, IdempotentRoute
from ..ojs import protocol
from .problems import ProblemDetails


def completed(document: dict[str, Any], routes: Iterable[APIRoute]) -> dict[str, Any]:
    """Add problems, job definitions and the idempotency header to an OpenAPI document."""
    for model in (ProblemDetails, protocol.OjsErrorAnswer):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= {**schema.pop("$defs", {}), model.__name__: schema}
    document["components"]["schemas"] |= written_schemas()
    header = {
        "name": IDEMPOTENCY_KEY,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[ -~]+$"},
        "description": "A request with the same key gets the same answer and has no second effect, for a day.",
    }
    for route in routes:
        if isinstance(route, IdempotentRoute) and "POST" in (route.methods or ()):
            document["paths"][route.path]["post"].setdefault("parameters", []).append(header)
    return document


_REFERENCE = "#/components/schemas/{model}"


def written_schemas() -> dict[str, Any]:
    """Return the schemas of job definitions as hip-62 and the Open Job Spec write them."""
    job = JobDefinition.model_json_schema(mode="validation", ref_template=_REFERENCE)
    parts = {f"Written{name}": part for name, part in job.pop("$defs").items()}
    job = _renamed(job, parts)
    job["title"] = "Hip62Job"
    job["properties"] |= {
        "lock": {"type": "boolean", "description": "true: skip a run while another is active; false: let runs overlap"},
        "concurrent": {"type": "boolean", "description": "the opposite of `lock`"},
    }
    return {
        **{name: _renamed(part, parts) for name, part in parts.items()},
        "Hip62Job": job,
        "WrittenCron": _written_cron(job),
        "WrittenJob": {"anyOf": [{"$ref": _REFERENCE.format(model=name)} for name in ("Hip62Job", "WrittenCron")]},
    }


def _written_cron(job: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a CronJob with its extensions."""
    extensions = {name: job["properties"][name] for name in sorted(ojs.EXTENSIONS)}
    return {**_CRON, "properties": {**_CRON["properties"], **extensions}}


def _renamed(schema: Any, parts: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Return a schema with its references renamed, because answers have schemas of the same names."""
    match schema:
        case dict():
            return {
                key: f"#/components/schemas/Written{value.rpartition('/')[2]}"
                if key == "$ref" and f"Written{value.rpartition('/')[2]}" in parts
                else _renamed(value, parts)
                for key, value in schema.items()
            }
        case list():
            return [_renamed(item, parts) for item in schema]
        case _:
            return schema


_TYPE = {"type": "string", "pattern": r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$"}
_CRON: dict[str, Any] = {
    "title": "CronJob",
    "description": "ojs-cron §2; `expression` in place of `cron`, and `job_template` around `type`, `args` and `options`, are also accepted.",
    "type": "object",
    "required": ["name", "cron", "type"],
    "properties": {
        "name": {"type": "string", "pattern": r"^[a-z0-9][a-z0-9\-\.]*$", "maxLength": 255},
        "cron": {"type": "string"},
        "timezone": {"type": "string", "default": "UTC"},
        "type": _TYPE,
        "args": {"type": "array", "items": {}},
        "options": {
            "type": "object",
            "properties": {
                "queue": {"type": "string"},
                "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds."},
                "retry": {"type": "object"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "meta": {"type": "object"},
            },
        },
        "overlap_policy": {"enum": ["skip", "allow", "cancel_previous", "enqueue"]},
        "enabled": {"type": "boolean"},
        "description": {"type": ["string", "null"]},
    },
}
