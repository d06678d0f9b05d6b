"""The time until the API begins its answer, as a histogram by route."""

from time import perf_counter
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .... import telemetry

NONE: Final = "(none)"
"""The label of a path or a method that no route serves: both are the client's choice."""

_latency: Final = telemetry.meter().create_histogram(
    "tocsin_http_request_seconds",
    description="Time until the API begins an answer, by route.",
    explicit_bucket_boundaries_advisory=[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30],
)


class Latency:
    """Measures each request until its answer begins: a stream may last for days."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()

        async def measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                is_served = scope["method"] in (getattr(route, "methods", None) or ())
                labels = {
                    "route": getattr(route, "path", NONE),
                    "method": scope["method"] if is_served else NONE,
                    "status": message["status"],
                }
                _latency.record(perf_counter() - began, labels)
            await send(message)

        await self._app(scope, receive, measured)
