"""The manifest: all that it names works, and all that is served is named (ojs-conformance §4)."""

from typing import Any, Final

import httpx
import pytest
from fastapi.routing import APIRoute

from tests.ojs.test_gateway import fresh
from tocsin.adapters.http.api.app import ROUTERS

CORE: Final = "levels 0 and 1"
ROUTES: Final = {
    ("GET", "/ojs/manifest"): CORE,
    ("GET", "/ojs/v1/health"): CORE,
    ("POST", "/ojs/v1/jobs"): CORE,
    ("GET", "/ojs/v1/jobs/{id}"): CORE,
    ("DELETE", "/ojs/v1/jobs/{id}"): CORE,
    ("POST", "/ojs/v1/jobs/batch"): "batch_enqueue",
    ("POST", "/ojs/v1/jobs/bulk"): "bulk_enqueue",
    ("POST", "/ojs/v1/jobs/bulk/cancel"): "bulk_cancel",
    ("POST", "/ojs/v1/jobs/bulk/retry"): "bulk_retry",
    ("PUT", "/ojs/v1/jobs/{id}/progress"): "progress",
    ("GET", "/ojs/v1/jobs/{id}/progress"): "progress",
    ("POST", "/ojs/v1/workers/fetch"): CORE,
    ("POST", "/ojs/v1/workers/ack"): CORE,
    ("POST", "/ojs/v1/workers/nack"): CORE,
    ("POST", "/ojs/v1/workers/heartbeat"): CORE,
    ("POST", "/ojs/v1/workers/ack/batch"): "batch_ack",
    ("GET", "/ojs/v1/queues"): CORE,
    ("GET", "/ojs/v1/queues/{name}"): CORE,
    ("GET", "/ojs/v1/queues/{name}/stats"): "queue_stats",
    ("POST", "/ojs/v1/queues/{name}/pause"): "pause_resume",
    ("POST", "/ojs/v1/queues/{name}/resume"): "pause_resume",
    ("GET", "/ojs/v1/dead-letter"): "dead_letter",
    ("POST", "/ojs/v1/dead-letter/{id}/retry"): "dead_letter",
    ("DELETE", "/ojs/v1/dead-letter/{id}"): "dead_letter",
    ("POST", "/ojs/v1/workflows"): "workflows",
    ("GET", "/ojs/v1/workflows/{id}"): "workflows",
    ("DELETE", "/ojs/v1/workflows/{id}"): "workflows",
    ("POST", "/ojs/v1/workflows/{id}/retry"): "workflow_retry",
    ("GET", "/ojs/v1/events"): "events",
    ("GET", "/ojs/v1/admin/queues"): "admin_api",
    ("GET", "/ojs/v1/admin/queues/{name}"): "admin_api",
    ("POST", "/ojs/v1/admin/queues/{name}/pause"): "admin_api",
    ("POST", "/ojs/v1/admin/queues/{name}/resume"): "admin_api",
    ("DELETE", "/ojs/v1/admin/queues/{name}/jobs"): "admin_api",
    ("GET", "/ojs/v1/admin/stats"): "admin_api",
    ("GET", "/ojs/v1/admin/jobs"): "admin_api",
    ("GET", "/ojs/v1/admin/jobs/{id}"): "admin_api",
    ("POST", "/ojs/v1/admin/jobs/{id}/cancel"): "admin_api",
    ("POST", "/ojs/v1/admin/jobs/{id}/retry"): "admin_api",
    ("POST", "/ojs/v1/admin/jobs/bulk/cancel"): "admin_api",
    ("POST", "/ojs/v1/admin/jobs/bulk/retry"): "admin_api",
    ("GET", "/ojs/v1/admin/dead-letter"): "admin_api",
    ("POST", "/ojs/v1/admin/dead-letter/{id}/retry"): "admin_api",
    ("GET", "/ojs/v1/admin/workers"): "admin_api",
    ("GET", "/ojs/v1/admin/workers/{id}"): "admin_api",
    ("POST", "/ojs/v1/admin/workers/{id}/quiet"): "admin_api",
    ("POST", "/ojs/v1/cron"): "cron_jobs",
    ("GET", "/ojs/v1/cron"): "cron_jobs",
    ("GET", "/ojs/v1/cron/{name}"): "cron_jobs",
    ("PATCH", "/ojs/v1/cron/{name}"): "cron_jobs",
    ("DELETE", "/ojs/v1/cron/{name}"): "cron_jobs",
}
"""The capability of each endpoint."""
OPTION_OF: Final = {
    "delayed_jobs": "scheduled_at",
    "job_ttl": "expires_at",
    "priority_queues": "priority",
    "rate_limiting": "rate_limit",
    "unique_jobs": "unique",
}
"""The option of each capability without an endpoint."""
SHOWN_ELSEWHERE: Final = {"idempotency_keys", "long_polling"}
"""`test_repeated_request_enqueues_nothing` and `test_a_fetch_may_wait_for_its_first_job` show them."""
EXAMPLES: Final[dict[str, tuple[Any, Any]]] = {
    "queue": ("q", "Q!"),
    "priority": (3, 101),
    "tags": (["a"], "a"),
    "timeout": (5, 0),
    "timeout_ms": (5_000, "5 s"),
    "visibility_timeout_ms": (5_000, -1),
    "scheduled_at": ("+PT1H", "soon"),
    "delay_until": ("+PT1H", "soon"),
    "expires_at": ("+PT1H", "soon"),
    "retry": ({"max_attempts": 2}, {"max_attempts": -1}),
    "unique": ({"keys": ["args"]}, {"keys": ["color"]}),
    "rate_limit": ({"max_per_second": 5}, {"concurrency": 1}),
}
"""A valid and an invalid value of each option."""


async def manifest_of(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/ojs/manifest")
    assert answer.status_code == 200
    manifest: dict[str, Any] = answer.json()
    return manifest


def test_every_endpoint_has_its_capability() -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    served = {(method, route.path) for route in routes for method in route.methods or ()}
    assert {each for each in served if each[1].startswith("/ojs/")} == ROUTES.keys()


async def test_every_capability_is_named_and_true(client: httpx.AsyncClient) -> None:
    manifest = await manifest_of(client)
    capabilities = manifest["capabilities"]
    supported = {name for name, value in capabilities.items() if value}
    assert supported == {*ROUTES.values(), *OPTION_OF, *SHOWN_ELSEWHERE} - {CORE}
    assert {name for name, value in capabilities.items() if not value} == {"schema_validation"}
    assert set(OPTION_OF.values()) <= set(manifest["job_options"])


@pytest.mark.parametrize(("method", "path"), [key for key, value in ROUTES.items() if value != CORE])
async def test_endpoint_of_a_capability_answers(client: httpx.AsyncClient, method: str, path: str) -> None:
    """A request without a body, or for an unknown name, is refused by the endpoint itself."""
    answer = await client.request(method, path.format(id="0193a5b0-0000-7000-8000-000000000001", name="unknown"))
    if answer.status_code == 404:
        assert "unknown" in answer.text or "0193a5b0" in answer.text
    else:
        assert answer.status_code in {200, 400}, answer.text


async def test_every_option_is_named_and_obeyed(client: httpx.AsyncClient) -> None:
    options = (await manifest_of(client))["job_options"]
    assert set(options) == EXAMPLES.keys()
    for option, (valid, invalid) in EXAMPLES.items():
        body = {"type": "t.a", "args": [fresh()]}
        answer = await client.post("/ojs/v1/jobs", json={**body, "options": {option: invalid}})
        assert answer.status_code in {400, 422}, (option, answer.text)
        assert option in str(answer.json()["error"]["details"]["errors"][0]["field"])
        answer = await client.post("/ojs/v1/jobs", json={**body, "options": {option: valid}})
        assert answer.status_code == 201, (option, answer.text)


async def test_absent_schema_check_is_declared(client: httpx.AsyncClient) -> None:
    manifest = await manifest_of(client)
    assert manifest["schema_validation"] is manifest["capabilities"]["schema_validation"] is False
    body = {"type": "t.a", "args": [1], "schema": {"type": "array", "items": {"type": "string"}}}
    assert (await client.post("/ojs/v1/jobs", json=body)).status_code == 201


async def test_required_fields_of_the_manifest_are_there(client: httpx.AsyncClient) -> None:
    manifest = await manifest_of(client)
    required = {"specversion", "implementation", "conformance_level", "conformance_tier", "protocols", "backend"}
    assert required <= manifest.keys()
    assert {"name", "version", "language"} <= manifest["implementation"].keys()
    for extension in manifest["extensions"]["official"]:
        assert {"name", "uri", "version"} <= extension.keys()
    refused = {"type": "t.a", "args": [], "options": {"rate_limit": {"max_per_second": 1, "on_limit": "drop"}}}
    assert manifest["rate_limits"]["on_limit"] == ["wait"]
    assert (await client.post("/ojs/v1/jobs", json=refused)).status_code == 400
