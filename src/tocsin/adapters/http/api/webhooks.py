"""`POST /hooks/…`: requests of other programs to the webhooks of jobs.

The signature of a request takes the place of a token. The paths are not in the OpenAPI document, because the triggers of jobs make them.
"""

from fastapi import APIRouter, Request, Response

from ....ports import RequestRefused
from ....services.webhooks import MAX_BODY, WebhookRefused, WrongDelivery
from ..auth.security import count_request, source_of
from .dependencies import Here
from .problems import Problem

router = APIRouter(prefix="/hooks", include_in_schema=False)


@router.post("/{path:path}")
async def receive_webhook(here: Here, request: Request, path: str) -> Response:
    """Store a signed request for the job with its path, and answer 202."""
    body = await _body(request)
    _require_json(request, body)
    try:
        signed = await here.webhooks.accept(f"/hooks/{path}", dict(request.headers), body)
    except WebhookRefused as error:
        await count_request(request, f"refused:{source_of(request)}")
        raise Problem(401, "webhook-refused", str(error)) from None
    except WrongDelivery as error:
        await count_request(request, f"refused:{source_of(request)}")
        raise Problem(400, "bad-request", str(error)) from None
    await count_request(request, f"webhook:{signed.webhook.path}")
    try:
        await here.webhooks.store(signed)
    except RequestRefused as error:
        detail = "too many requests to webhooks wait for the event listener. Retry later"
        raise Problem(503, "unavailable", detail, headers={"Retry-After": "10"}) from error
    return Response(status_code=202)


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise Problem(413, "too-large", f"the body is larger than {MAX_BODY:,} bytes. Let the sender send less")
    return bytes(body)


def _require_json(request: Request, body: bytes) -> None:
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json" and not kind.endswith("+json"):
        raise Problem(
            415, "unsupported-media-type", "the body must be JSON. Let the sender use `Content-Type: application/json`"
        )
