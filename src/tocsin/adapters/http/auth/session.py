"""The session of a browser: a cookie that carries the caller's token.

No server keeps a session. Every copy of the API verifies the token in the cookie as in an `Authorization` header, so a revoked
or expired token ends the session. A page proves by the CSRF token that it may use the session: the token is
derived from the session's token, which only the browser and this server have. ADR 64 has the reasons.
"""

import hashlib
import hmac
import re
from typing import Final

from fastapi import Request
from starlette.responses import Response

from ..api.problems import Problem
from .tokens import InvalidToken

COOKIE: Final = "tocsin-session"
HOST_PREFIX: Final = "__Host-"
"""Over HTTPS, browsers accept a cookie with this prefix from this host only, and not from its siblings."""
CSRF_HEADER: Final = "X-CSRF-Token"
MAX_AGE_S: Final = 43_200
"""Time after which a browser forgets the session: half a day."""
MAX_COOKIE_BYTES: Final = 4_096
"""Size of a cookie with its attributes that every browser keeps."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
ORIGIN: Final = re.compile(r"https?://(?P<authority>(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?)")
"""An origin as browsers write it: nothing before the host, and nothing after the port."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9._-]+")
"""A JSON Web Token, or a token of the installation. No character ends a cookie or a header, or needs quotation marks there."""


def is_secure(request: Request) -> bool:
    """Return whether the browser reaches this server over HTTPS, also through a proxy."""
    if request.url.scheme == "https":
        return True
    public: str | None = request.app.state.public_url
    return public == f"https://{_host(request)}"


def cookie_name(request: Request, name: str = COOKIE) -> str:
    """Return the name of a cookie for the scheme of a request."""
    return HOST_PREFIX + name if is_secure(request) else name


def cookies(request: Request, name: str = COOKIE) -> list[str]:
    """Return the values of a cookie: more than one if another host planted a second."""
    prefix = cookie_name(request, name) + "="
    parts = (part.strip() for header in request.headers.getlist("Cookie") for part in header.split(";"))
    return [part.removeprefix(prefix) for part in parts if part.startswith(prefix)]


def is_presented(request: Request) -> bool:
    """Return whether a session counts; programs, which have no browser's cookies, use other paths."""
    return request.scope["path"].startswith("/v1/") and bool(cookies(request))


def session_token(request: Request) -> str:
    """Return the token in the cookie of a request that has one.

    Raises:
        InvalidToken: the cookie cannot be one of this server.
        Problem: a page of another site sent the request.
    """
    require_own_site(request)
    values = cookies(request)
    if len(values) != 1:
        raise InvalidToken(f"the request has {len(values)} session cookies")
    [token] = values
    if len(token) > MAX_COOKIE_BYTES or not is_token(token):
        raise InvalidToken("its cookie is damaged")
    return token


def is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def csrf_token(token: str) -> str:
    """Return the CSRF token of a session, which cannot be made without the session's token."""
    return hmac.new(token.encode(), b"tocsin console: csrf", hashlib.sha256).hexdigest()


def require_csrf_token(request: Request, token: str) -> None:
    """Refuse a request that may change something without the CSRF token of the session."""
    if request.method in SAFE_METHODS:
        return
    sent = request.headers.get(CSRF_HEADER, "")
    if hmac.compare_digest(sent.encode(), csrf_token(token).encode()):
        return
    state = "is not that of this session" if sent else "is missing"
    detail = (
        f"the header `{CSRF_HEADER}` {state}, and a session changes nothing without it. Send the `csrf_token` of "
        "`GET /console/session`, or a bearer token in place of the session"
    )
    raise Problem(403, "csrf-token", detail)


def require_own_site(request: Request) -> None:
    """Reject a request that a page of another site sent with the session."""
    # A page of this origin, the person at the browser, or no browser.
    if request.headers.get("Sec-Fetch-Site") not in {"same-origin", "none", None}:
        raise _foreign("a page of another site sent the request")


def require_own_origin(request: Request) -> None:
    """Reject a page of another origin: such a page could sign the browser in."""
    if request.headers.get("Sec-Fetch-Site") == "same-origin":
        return
    require_own_site(request)
    origin = request.headers.get("Origin")
    if origin is None:
        return  # no browser, which sends it with every POST and DELETE
    parts = ORIGIN.fullmatch(origin)
    if origin != request.app.state.public_url and (parts is None or parts["authority"] != _host(request)):
        raise _foreign(f"a page of the origin {origin[:200]!r} sent the request")


def store(request: Request, response: Response, token: str) -> None:
    """Let the browser keep a session."""
    response.set_cookie(
        cookie_name(request), token, MAX_AGE_S, secure=is_secure(request), httponly=True, samesite="strict"
    )
    size = len(response.headers["Set-Cookie"])
    if size > MAX_COOKIE_BYTES:
        detail = (
            f"the session would be a cookie of {size:,} bytes, and browsers keep {MAX_COOKIE_BYTES:,}: the token has "
            f"{len(token):,} bytes. Let the identity provider put fewer claims into it"
        )
        raise Problem(413, "too-large", detail)


def clear(request: Request, response: Response) -> None:
    response.delete_cookie(cookie_name(request), secure=is_secure(request), httponly=True, samesite="strict")


def _host(request: Request) -> str:
    return request.headers.get("Host", "").lower()


def _foreign(reason: str) -> Problem:
    return Problem(403, "forbidden", f"{reason}. Open the console at its own address")
