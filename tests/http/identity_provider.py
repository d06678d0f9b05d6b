"""An identity provider that answers over HTTP, with keys of its own."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from typing_extensions import override

AUDIENCE = "tocsin"
SPACES = b" " * 65_536


class IssuingKey:
    """A key that signs tokens."""

    def __init__(self, kid: str) -> None:
        self.kid = kid
        self.private = ec.generate_private_key(ec.SECP256R1())

    def public(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key()))
        return {**found, "kid": self.kid, "alg": "ES256", "use": "sig"}


class Provider:
    """One issuer. `published` is what it says that its keys are."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.key = IssuingKey("one")
        self.published = [self.key]
        self.is_down = False
        self.asked = 0
        self.padding_bytes = 0
        """Spaces before each answer."""
        self.sent_bytes = 0

    def token(self, identity: str = "ada", *, key: IssuingKey | None = None, **claims: object) -> str:
        key = key or self.key
        now = datetime.now(UTC)
        body = {"sub": identity, "iss": self.url, "aud": AUDIENCE, "exp": now + timedelta(minutes=5), **claims}
        body = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(body, key.private, algorithm="ES256", headers={"kid": key.kid})

    def answer(self, path: str) -> dict[str, Any] | None:
        self.asked += 1
        if self.is_down:
            return None
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return {"keys": [key.public() for key in self.published]} if path == "/keys" else None


@contextmanager
def identity_provider() -> Iterator[Provider]:
    """Have one answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = provider.answer(self.path)
            self.send_response(200 if answer is not None else 503)
            self.end_headers()
            with suppress(ConnectionError):  # the client hung up
                for _ in range(provider.padding_bytes // len(SPACES)):
                    self.wfile.write(SPACES)
                    provider.sent_bytes += len(SPACES)
                self.wfile.write(json.dumps(answer or {}).encode())

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider = Provider(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
