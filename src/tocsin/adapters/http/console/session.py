"""`/console/session`: sign in with a token, show the session, and sign out."""

from typing import cast

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from ....domain.access import Principal
from ..api.problems import Problem
from ..auth import session
from ..auth.authentication import Authentication
from ..auth.security import by_session, by_token, counted, unauthenticated

router = APIRouter(prefix="/console/session", include_in_schema=False)


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


@router.get("")
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


@router.post("")
async def sign_in(request: Request, body: SignIn, response: Response) -> Session:
    """Verify a token, and let the browser keep it."""
    session.require_own_origin(request)
    token = body.token.strip()
    await counted(request, _checked(request, token))
    session.store(request, response, token)
    return await _shown(request, token)


@router.delete("", status_code=204)
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
