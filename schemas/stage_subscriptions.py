"""The AsyncAPI 3 document of what the stages consume.

FastStream's generator makes it from the routers that run. It describes a batch as one message and names one filter of a
durable, so both are corrected here: each channel is one filter, and its message one event or input.
"""

from typing import TYPE_CHECKING, Any, Final, cast

from faststream.nats import NatsBroker
from faststream.specification import AsyncAPI

from tocsin.adapters.nats.client.names import Names
from tocsin.adapters.nats.consumers.stage_router import stage_router
from tocsin.engine.stage import BoundStage
from tocsin.settings import Settings
from tocsin.stages import STAGES

if TYPE_CHECKING:
    from tocsin.engine.edge import EdgeDecisions

EVERY_STAGE: Final = Settings.model_validate(
    {"queues": {"outside": {"transport": "mq"}, "matched": {"transport": "matched"}}}
)
"""Settings of an installation that has every stage with durables."""
_NAMES: Final = Names()


def bound_stages() -> list[BoundStage]:
    """Return the stages with their durables, and without the objects that decide."""
    return [
        BoundStage(stage.name, tuple(subscription.bind(None, EVERY_STAGE) for subscription in stage.subscriptions))
        for stage in STAGES
    ]


def document(version: str) -> dict[str, Any]:
    """Return the whole document."""
    stages = bound_stages()
    generated = _generated(version, stages)
    schemas = generated["components"]["schemas"]
    messages: dict[str, Any] = {}
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for stage in stages:
        for subscription in stage.subscriptions:
            title = f"{stage.name}: {subscription.durable}"
            batch = schemas.pop(f"{title}:Message:Payload")
            messages[subscription.durable] = {"title": f"An input of `{stage.name}`", "payload": batch["items"]}
            for number, subject in enumerate(subscription.filters, 1):
                key = subscription.durable if len(subscription.filters) == 1 else f"{subscription.durable}-{number}"
                channels[key] = {
                    "address": _NAMES.to_wire(subject),
                    "description": f"Durable `{subscription.durable}` of the stream `{_NAMES.stream(subscription.stream)}`.",
                    "messages": {subscription.durable: _ref("components", "messages", subscription.durable)},
                }
                operations[key] = {
                    "action": "receive",
                    "title": f"`{stage.name}` decides",
                    "channel": _ref("channels", key),
                    "messages": [_ref("channels", key, "messages", subscription.durable)],
                }
    return {
        "asyncapi": generated["asyncapi"],
        "info": {**generated["info"], "description": "What the stages of Tocsin consume, with the default names."},
        "defaultContentType": generated["defaultContentType"],
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": dict(sorted(schemas.items()))},
    }


def _generated(version: str, stages: list[BoundStage]) -> dict[str, Any]:
    """Return FastStream's own document."""
    decisions = cast("EdgeDecisions", None)  # no message comes
    broker = NatsBroker("nats://localhost", apply_types=False, logger=None)
    for stage in stages:
        broker.include_router(stage_router(stage, decisions, _NAMES, is_specified=True))
    specification = AsyncAPI(broker, title="Stages of Tocsin", version=version, schema_version="3.0.0")
    return cast("dict[str, Any]", specification.to_specification().to_jsonable())


def _ref(*path: str) -> dict[str, str]:
    return {"$ref": f"#/{'/'.join(path)}"}
