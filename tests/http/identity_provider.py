"""An identity provider that answers over HTTP, with keys of its own."""

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit

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


CLIENT = "tocsin-console"
SECRET = "a: %"  # noqa: S105 - of this provider, with characters that need an encoding


class SignIns:
    """The code flow of an issuer: it signs in each person at once, and gives each code once."""

    def __init__(self, provider: "Provider") -> None:
        self._provider = provider
        self._codes: dict[str, dict[str, str]] = {}
        self.secret: str | None = None
        """The secret of the client, if it has one."""
        self.auth_methods: list[str] | None = None
        self.refusal: dict[str, str] = {}
        """The answer in place of a code."""
        self.answers: dict[str, object] = {}
        """Tokens in place of the right tokens; None: without it."""
        self.id_claims: dict[str, Any] = {}
        self.access_claims: dict[str, Any] = {"roles": ["scheduler-viewer"]}
        self.body: bytes | None = None
        """The answer to an exchange of any code."""

    def endpoints(self) -> dict[str, object]:
        url, methods = self._provider.url, self.auth_methods
        known = {} if methods is None else {"token_endpoint_auth_methods_supported": methods}
        return {"authorization_endpoint": f"{url}/authorize?tenant=1", "token_endpoint": f"{url}/token", **known}

    def authorize(self, path: str) -> str:
        """Return where the browser goes next."""
        query = dict(parse_qsl(urlsplit(path).query))
        assert (query["tenant"], query["response_type"], query["client_id"]) == ("1", "code", CLIENT)
        assert query["code_challenge_method"] == "S256"
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        answer = self.refusal or {"code": code}
        return f"{query['redirect_uri']}?{urlencode({**answer, 'state': query['state']})}"

    def exchange(self, body: str, authorization: str | None) -> tuple[int, bytes]:
        """Return the tokens for a code."""
        if self.body is not None:
            return 200, self.body
        form = dict(parse_qsl(body))
        begun = self._codes.pop(form.get("code", ""), None)
        if begun is None or not self._is_proven(form, begun) or not self._is_client(form, authorization):
            return 400, json.dumps({"error": "invalid_grant", "error_description": "<b>no</b>"}).encode()
        claims: dict[str, Any] = {"nonce": begun["nonce"], "aud": CLIENT, **self.id_claims}
        tokens = {
            "access_token": self._provider.token(**self.access_claims),
            "id_token": self._provider.token(**claims),
            **self.answers,
        }
        return 200, json.dumps(tokens).encode()

    def _is_proven(self, form: dict[str, str], begun: dict[str, str]) -> bool:
        digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        return digest.decode() == begun["code_challenge"] and form["redirect_uri"] == begun["redirect_uri"]

    def _is_client(self, form: dict[str, str], authorization: str | None) -> bool:
        if self.secret is None:
            return form.get("client_id") == CLIENT and authorization is None
        if self.auth_methods == ["client_secret_post"]:
            return (form.get("client_id"), form.get("client_secret")) == (CLIENT, self.secret)
        credentials = f"{quote_plus(CLIENT)}:{quote_plus(self.secret)}"
        return authorization == f"Basic {base64.b64encode(credentials.encode()).decode()}"


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
        self.bodies: dict[str, bytes] = {}
        """Answers in place of the right answers, by path."""
        self._dripping: dict[str, threading.Event] = {}
        """Paths whose answers go on until an event."""
        self.sign_ins = SignIns(self)

    def token(
        self, identity: str = "ada", *, key: IssuingKey | None = None, nulls: tuple[str, ...] = (), **claims: object
    ) -> str:
        """Return a token; a claim of None is left out, and each of `nulls` is null."""
        key = key or self.key
        now = datetime.now(UTC)
        body = {"sub": identity, "iss": self.url, "aud": AUDIENCE, "exp": now + timedelta(minutes=5), **claims}
        body = {name: value for name, value in body.items() if value is not None}
        body |= dict.fromkeys(nulls)
        return jwt.encode(body, key.private, algorithm="ES256", headers={"kid": key.kid})

    @contextmanager
    def dripping(self, path: str) -> Iterator[None]:
        """Let answers of a path go on, a space at a time, until the end of the block."""
        ended = self._dripping[path] = threading.Event()
        try:
            yield
        finally:
            del self._dripping[path]
            ended.set()

    def drip(self, path: str, send: Callable[[bytes], object]) -> None:
        """Send spaces as long as the answers of a path drip."""
        ended = self._dripping.get(path)
        while ended is not None and not ended.wait(0.02):
            send(b" ")

    def answer(self, path: str) -> dict[str, Any] | None:
        self.asked += 1
        if self.is_down:
            return None
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.sign_ins.endpoints()}
        return {"keys": [key.public() for key in self.published]} if path == "/keys" else None


@contextmanager
def identity_provider() -> Iterator[Provider]:
    """Have one answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/authorize?"):
                self.send_response(302)
                self.send_header("Location", provider.sign_ins.authorize(self.path))
                self.end_headers()
                return
            answer = provider.answer(self.path)
            self.send_response(200 if answer is not None else 503)
            self.end_headers()
            with suppress(ConnectionError):  # the client hung up
                for _ in range(provider.padding_bytes // len(SPACES)):
                    self.wfile.write(SPACES)
                    provider.sent_bytes += len(SPACES)
                provider.drip(self.path, self.wfile.write)
                self.wfile.write(provider.bodies.get(self.path, json.dumps(answer or {}).encode()))

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, body = provider.sign_ins.exchange(form, self.headers.get("Authorization"))
            self.send_response(status)
            self.end_headers()
            with suppress(ConnectionError):  # the client hung up
                provider.drip(self.path, self.wfile.write)
                self.wfile.write(body)

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
