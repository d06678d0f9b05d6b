"""`/console/sign-in` and `/console/callback`: sign in through the identity provider; `/console/session`: with a token.

The cookie of an attempt is SameSite=Lax, because the provider's page leads the browser back. The session's cookie is Strict: a
browser does not send it with the navigation that began at the provider. So the callback answers with a page that opens the
console itself.
"""

import hmac
import re
from html import escape
from http import HTTPStatus
from typing import Annotated, Final, cast

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import HTMLResponse, RedirectResponse, Response

from .... import telemetry
from ....domain.access import Principal
from ..api.problems import Problem
from ..auth import session
from ..auth.authentication import Authentication, ProviderUnavailable
from ..auth.code_flow import CodeFlow, SignInAttempt, SignInFailed, reason_of
from ..auth.security import LOOPBACK_NAMES, by_session, by_token, count_request, counted, source_of, unauthenticated
from .files import CONTENT_SECURITY_POLICY, HOME

COOKIE: Final = "tocsin-sign-in"
MAX_AGE_S: Final = 600
"""Time that a person has at the identity provider."""
MAX_PAGE: Final = 1_000
"""Length of the path that opens after the sign-in."""
_PAGE: Final = re.compile(
    r"/console(?![^?#]*(?:/|%2[fF])(?:/|%2[fF]|(?:\.|%2[eE]){1,2}(?:[/?#%]|$)))(?:[/?#][!-\[\]-~]*)?"
)
"""A path of the console, without a backslash, which browsers read as a slash, and without `..`, `.` or `//`, which lead out of it."""

router = APIRouter(include_in_schema=False)
_log = telemetry.get_logger("tocsin.http")


@router.get(HOME + "/sign-in")
async def begin_sign_in(request: Request, next: Annotated[str, Query()] = HOME) -> Response:  # noqa: A002 - the query parameter has this name
    """Redirect the browser to the identity provider."""
    await count_request(request, f"sign-in:{source_of(request)}")
    flow = _flow(request)
    attempt = SignInAttempt.begin(next if len(next) <= MAX_PAGE and _PAGE.fullmatch(next) else HOME)
    try:
        url = await flow.authorization_url(attempt, _redirect_url(request))
    except ProviderUnavailable as error:
        return _failed(request, HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    response = RedirectResponse(url, HTTPStatus.SEE_OTHER)
    response.set_cookie(
        session.cookie_name(request, COOKIE),
        attempt.cookie(),
        MAX_AGE_S,
        secure=session.is_secure(request),
        httponly=True,
        samesite="lax",
    )
    return response


@router.get(HOME + "/callback")
async def end_sign_in(
    request: Request,
    state: Annotated[str, Query()] = "",
    code: Annotated[str, Query()] = "",
    error: Annotated[str, Query()] = "",
    error_description: Annotated[str, Query()] = "",
) -> Response:
    """Exchange the code of the identity provider for a session, and open the console."""
    await count_request(request, f"sign-in:{source_of(request)}")
    flow = _flow(request)
    attempt = _attempt(request, state)
    if attempt is None:
        return _failed(request, HTTPStatus.BAD_REQUEST, "this browser did not begin the sign-in, or it is over")
    try:
        if error or not code:
            words = reason_of({"error": error, "error_description": error_description} if error else {})
            reason = f"the identity provider did not sign you in: {words}"
            response = _failed(request, HTTPStatus.BAD_REQUEST, reason)
        else:
            target = escape(attempt.page)
            response = _page(  # it opens the console as a navigation of its own
                HTTPStatus.OK,
                f'<meta http-equiv="refresh" content="0; url={target}">',
                f'<p>You are signed in. <a href="{target}">Open the console</a></p>',
            )
            session.store(request, response, await flow.token(attempt, code, _redirect_url(request)))
    except SignInFailed as failure:
        response = _failed(request, HTTPStatus.BAD_REQUEST, str(failure))
    except ProviderUnavailable as failure:
        response = _failed(request, HTTPStatus.SERVICE_UNAVAILABLE, str(failure))
    except Problem as failure:
        response = _failed(request, failure.status, failure.detail)
    # Another sign-in needs another attempt: its values are used once.
    response.delete_cookie(
        session.cookie_name(request, COOKIE), secure=session.is_secure(request), httponly=True, samesite="lax"
    )
    return response


def _flow(request: Request) -> CodeFlow:
    flow: CodeFlow | None = request.app.state.code_flow
    if flow is None:
        raise Problem(
            404,
            "not-found",
            "no sign-in through an identity provider is configured. Set `auth.client_id`, or sign in with a token",
        )
    return flow


def _attempt(request: Request, state: str) -> SignInAttempt | None:
    cookies = session.cookies(request, COOKIE)
    attempt = SignInAttempt.read(cookies[0]) if len(cookies) == 1 else None
    if attempt is None or not hmac.compare_digest(attempt.state.encode(), state.encode()):
        return None
    return attempt if _PAGE.fullmatch(attempt.page) else None


def _redirect_url(request: Request) -> str:
    public: str | None = request.app.state.public_url
    if public is None:
        if request.url.hostname not in LOOPBACK_NAMES:
            raise Problem(
                409,
                "not-possible",
                "the address of this server is not known to it. Set `server.public_url`, such as `https://tocsin.example.com`",
            )
        public = f"{request.url.scheme}://{request.url.netloc}"
    return f"{public}{HOME}/callback"


def _failed(request: Request, status: int, reason: str) -> Response:
    """Return a page with the reason as text, because a person reads it."""
    _log.warning("sign-in failed", action="sign-in-failed", reason=reason, source=source_of(request))
    return _page(status, "", f'<p>The sign-in failed: {escape(reason)}.</p><p><a href="{HOME}">Sign in again</a></p>')


def _page(status: int, head: str, body: str) -> Response:
    document = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tocsin: sign in</title>{head}</head>'
        f"<body>{body}</body></html>"
    )
    return HTMLResponse(document, status, {"Content-Security-Policy": CONTENT_SECURITY_POLICY})


SESSION: Final = HOME + "/session"


class Session(BaseModel):
    """The session of a browser."""

    required: bool
    """Whether requests need a token."""
    signed_in: bool
    provider: bool
    """Whether the browser can sign in through the identity provider."""
    csrf_token: str | None = None


class SignIn(BaseModel, extra="forbid"):
    """The request to sign in."""

    token: str


@router.get(SESSION)
async def get_session(request: Request, response: Response) -> Session:
    """Show whether the browser has a session, and remove a cookie that is not accepted."""
    token = None
    if session.cookies(request):
        try:
            await counted(request, by_session(request))
        except Problem as problem:
            if problem.kind != "unauthenticated":
                raise
            session.clear(request, response)
        else:
            token = session.session_token(request)
    return await _shown(request, token)


@router.post(SESSION)
async def sign_in(request: Request, body: SignIn, response: Response) -> Session:
    """Verify a token, and let the browser keep it."""
    session.require_own_origin(request)
    token = body.token.strip()
    await counted(request, _checked(request, token))
    session.store(request, response, token)
    return await _shown(request, token)


@router.delete(SESSION, status_code=204)
async def sign_out(request: Request, response: Response) -> None:
    """Let the browser forget its session."""
    session.require_own_origin(request)
    if session.cookies(request):
        try:
            await counted(request, by_session(request))
        except Problem as problem:
            if problem.kind == "csrf-token":
                raise
    session.clear(request, response)


async def _checked(request: Request, token: str) -> Principal:
    if not session.is_token(token):
        raise unauthenticated("the token is not accepted: it has a character that no token has", error="invalid_token")
    return await by_token(request, token)


async def _shown(request: Request, token: str | None) -> Session:
    return Session(
        required=await cast("Authentication", request.app.state.authenticator).is_required(),
        signed_in=token is not None,
        provider=request.app.state.code_flow is not None,
        csrf_token=session.csrf_token(token) if token else None,
    )
