"""Write the schemas in this folder, or check that they match the models.

    python schemas/generate.py            writes
    python schemas/generate.py --check    prints the differences, and exits 1 if there are any

The models are the only source of the schemas of events, inputs and public events (`tocsin.domain.events`), and of the definition
of a job and its file.
"""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncapi
import stage_subscriptions
from pydantic import TypeAdapter

from tocsin import __version__
from tocsin.adapters.http.api.app import openapi
from tocsin.domain import definition, events

FOLDER = Path(__file__).parent
PROTO = "tocsin/v1/scheduler.proto"
GRPC_CODE = FOLDER.parent / "src"
"""The proto's package `tocsin.v1` is a package of `tocsin`, because generated code imports it under this name."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each file's name and content."""
    for _, model in sorted(vars(events).items()):
        if isinstance(model, type) and issubclass(model, events.Message) and (kind := _kind(model)):
            yield f"events/{kind}.json", _schema(model)
    yield "definition.json", _schema(definition.JobDefinition)
    yield "task.json", _schema(events.Dispatched)
    yield "report.json", _schema(events.Report)
    yield "mq-envelope.json", _schema(events.Envelope)
    yield "mq-cancel.json", _schema(events.MqCancel)
    yield "mq-completion.json", _schema(events.Completion)
    yield "job-file.json", _job_file()
    yield "openapi.json", openapi(__version__)
    yield "asyncapi.json", asyncapi.document(__version__)
    yield "stages.asyncapi.json", stage_subscriptions.document(__version__)


def _grpc_code() -> dict[Path, str]:
    """Return the code of the proto file; nothing if grpcio-tools is not installed."""
    if find_spec("grpc_tools") is None:
        return {}
    from grpc_tools import protoc  # noqa: PLC0415 - see above

    with TemporaryDirectory() as folder:
        known = Path(protoc.__file__).parent / "_proto"  # those of Google
        outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(["protoc", f"-I{FOLDER / 'proto'}", f"-I{known}", *outputs, PROTO]):
            raise SystemExit(1)
        files = (path for path in Path(folder).rglob("*") if path.is_file())
        return {GRPC_CODE / path.relative_to(folder): path.read_text(encoding="utf-8") for path in files}


def main(arguments: list[str]) -> int:
    """Write the schemas, or check them."""
    wanted = {FOLDER / name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas()}
    present = {path: path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.json")}
    for path, code in _grpc_code().items():
        wanted[path] = code
        if path.exists():
            present[path] = path.read_text(encoding="utf-8")
    differing = sorted(path for path in wanted.keys() | present.keys() if wanted.get(path) != present.get(path))
    for path in differing:
        print(
            path.relative_to(FOLDER.parent),
            "is missing" if path not in present else "differs" if path in wanted else "is left over",
        )
    if "--check" in arguments:
        return 1 if differing else 0
    for path in differing:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


def _job_file() -> dict[str, Any]:
    """Return the schema of the YAML registry of hip-62: the definition and its shorthands."""
    schema = TypeAdapter(definition.JobDefinition).json_schema(mode="validation")
    definitions = schema.pop("$defs")
    schema["properties"] |= {
        "lock": {"type": "boolean", "description": "true: skip a run while one is active; false: let runs overlap"},
        "concurrent": {"type": "boolean", "description": "the opposite of `lock`"},
    }
    step = definitions["Step"]
    step["properties"]["step"] = step["properties"]["name"]
    del step["required"]  # `step`, and one of `function`, `command` and so on
    definitions["Job"] = schema
    jobs = {"type": "array", "items": {"$ref": "#/$defs/Job"}}
    return {
        "$schema": DIALECT,
        "title": "Jobs",
        "type": "object",
        "properties": {"jobs": jobs},
        "required": ["jobs"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _kind(model: type[events.Message]) -> str | None:
    """Return the constant `type` or `event` of a message, or None."""
    fields = getattr(events.model_of(model), "model_fields", {})
    kind = getattr(fields.get("type") or fields.get("event"), "default", None)
    if not isinstance(kind, str):
        return None
    prefix = next((text for base, text in _PREFIXES.items() if issubclass(model, base)), "")
    return f"{prefix}{kind}"


_PREFIXES = {events.QueueFact: "queue.", events.NotificationFact: "notification."}
"""Beginnings of the names of events whose types alone say too little."""


def _schema(model: Any) -> dict[str, Any]:  # noqa: ANN401 - a model, or a type that pydantic understands
    return {"$schema": DIALECT, **TypeAdapter(model).json_schema(mode="validation", by_alias=True)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
