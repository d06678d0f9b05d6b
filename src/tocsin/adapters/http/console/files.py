"""The files of the console, from the installed package."""

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from ..api.problems import not_found

HOME: Final = "/console"
INDEX: Final = "index.html"
READ_METHODS: Final = ("GET", "HEAD")
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""The types of files that are served; others stay in the package."""
_WEIGHT: Final = re.compile(r"[qQ]=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class File:
    """A file of the console."""

    body: bytes
    compressed: bytes | None
    """By gzip, if that makes it smaller."""
    media_type: str

    @classmethod
    def of(cls, body: bytes, media_type: str) -> "File":
        compressed = gzip.compress(body, mtime=0)
        return cls(body, compressed if len(compressed) < len(body) else None, media_type)

    def answer(self, request: Request) -> Response:
        """Return the file, compressed if possible, or that the browser's copy is current."""
        headers = {"Cache-Control": "no-cache", "Content-Security-Policy": CONTENT_SECURITY_POLICY}
        body = self.body
        if self.compressed is not None:
            headers["Vary"] = "Accept-Encoding"
            if _accepts_gzip(request):
                body = self.compressed
                headers["Content-Encoding"] = "gzip"
        tag = headers["ETag"] = _tag(body)
        known = {
            known.strip().removeprefix("W/") for known in ",".join(request.headers.getlist("If-None-Match")).split(",")
        }
        if not known.isdisjoint({tag, "*"}):
            headers.pop("Content-Encoding", None)
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=self.media_type)


@cache
def _tag(body: bytes) -> str:
    """Return the `ETag` of one form of a file: each form has its own."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _accepts_gzip(request: Request) -> bool:
    """Return whether `Accept-Encoding` permits gzip (RFC 9110, 12.5.3)."""
    weights = dict[str, float]()
    for part in ",".join(request.headers.getlist("Accept-Encoding")).split(","):
        coding, _, parameter = part.partition(";")
        weight = _WEIGHT.fullmatch(parameter.strip() or "q=1")
        weights[coding.strip().lower()] = float(weight[1]) if weight else 0.0
    return weights.get("gzip", weights.get("*", 0.0)) > 0


@cache
def console_files() -> Mapping[str, File]:
    """Return the files by their path below `static`."""
    return dict(_files_in(files(__package__) / "static", PurePosixPath()))


def _files_in(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[str, File]]:
    for entry in folder.iterdir():
        inner = path / entry.name
        if entry.is_dir():
            yield from _files_in(entry, inner)
        elif (media_type := MEDIA_TYPES.get(inner.suffix)) is not None:
            yield str(inner), File.of(entry.read_bytes(), media_type)


@router.api_route("/", methods=[*READ_METHODS])
async def redirect_browser(request: Request) -> Response:
    """Redirect a browser to the console. Other programs find nothing here."""
    if "text/html" not in request.headers.get("Accept", ""):
        raise HTTPException(404)
    return RedirectResponse(HOME, 303, {"Vary": "Accept"})


@router.api_route(HOME + "/assets/{path:path}", methods=[*READ_METHODS])
async def get_asset(request: Request, path: str) -> Response:
    """Return a file."""
    file = console_files().get(path)
    if file is None:
        raise not_found("file of the console", path)
    return file.answer(request)


@router.api_route(HOME, methods=[*READ_METHODS])
@router.api_route(HOME + "/{path:path}", methods=[*READ_METHODS])
async def get_page(request: Request) -> Response:
    """Return the page of every view, whose script reads the path."""
    return console_files()[INDEX].answer(request)
