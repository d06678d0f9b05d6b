"""`/ojs/manifest` and `/ojs/v1/health`: capabilities and health of the server (ojs-conformance §4)."""

from typing import Any, Final

from fastapi import APIRouter, Response

from ....domain.task_fetch import MAX_COUNT
from ....ports import MAX_TOGETHER
from ..api.dependencies import Here
from .envelope import OPTIONS
from .protocol import VERSION, OjsResponse, documented
from .workflow_envelope import MAX_DEPTH, MAX_JOBS

LEVEL: Final = 4
"""The extensions for priorities, rate limits, queue configuration and bulk operations are not listed, because each of them requires more than the level."""

CAPABILITIES: Final = (
    "admin_api",
    "batch_ack",
    "batch_enqueue",
    "bulk_cancel",
    "bulk_enqueue",
    "bulk_retry",
    "cron_jobs",
    "dead_letter",
    "delayed_jobs",
    "events",
    "idempotency_keys",
    "job_ttl",
    "long_polling",
    "pause_resume",
    "priority_queues",
    "progress",
    "queue_stats",
    "rate_limiting",
    "workflow_retry",
    "workflows",
)
DRAFT: Final = "1.0.0-rc.1"
EXTENSIONS: Final = ("progress", "admin-api")
"""The official extensions of which every requirement is met."""

TIER: Final = "runtime"
"""Jobs run through their whole lifecycle. The tier `full` also needs gRPC and every optional feature."""

STRENGTH: Final = "strong"
"""Of concurrent jobs with one unique key, one is enqueued (ojs-unique-jobs §8)."""

router = APIRouter(
    prefix="/ojs", tags=["Open Job Spec"], default_response_class=OjsResponse, responses=documented(400, 422, 429, 500)
)


@router.get("/manifest", operation_id="manifest")
async def manifest(here: Here) -> dict[str, Any]:
    """List the implemented capabilities."""
    return {
        "specversion": VERSION,
        "ojs_version": VERSION,
        "implementation": {"name": "tocsin", "version": here.version, "language": "python"},
        "conformance_level": LEVEL,
        "conformance_tier": TIER,
        "protocols": ["http"],
        "backend": "nats",
        "capabilities": {
            **dict.fromkeys(CAPABILITIES, True),
            "schema_validation": False,
            "unique_jobs": {"strength": STRENGTH, "mechanism": "optimistic guard of the key's scope in the log"},
        },
        "job_options": list(OPTIONS),
        "schema_validation": False,
        "unique_job_strength": STRENGTH,
        "batch_limits": {"max_batch_size": MAX_TOGETHER, "max_ack_batch_size": MAX_COUNT},
        "rate_limits": {"strategies": ["rate", "throttle"], "algorithm": "token bucket", "on_limit": ["wait"]},
        "workflow_limits": {"max_jobs": MAX_JOBS, "max_nesting_depth": MAX_DEPTH},
        "extensions": {
            "official": [{"name": name, "uri": f"urn:ojs:ext:{name}", "version": DRAFT} for name in EXTENSIONS]
        },
        "endpoints": {"base_url": "/ojs/v1", "manifest": "/ojs/manifest", "health": "/ojs/v1/health"},
    }


@router.get("/v1/health", operation_id="ojsHealth", responses={503: {"description": "The log cannot be reached."}})
async def health(here: Here, response: Response) -> dict[str, Any]:
    """Check that this copy reaches the log. The answer may be a second old."""
    if not await here.log_probe.answer():
        response.status_code = 503
        return {"status": "unhealthy", "version": here.version}
    return {"status": "ok", "version": here.version}
