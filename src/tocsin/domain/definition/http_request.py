"""The request that a job or a step sends, and its rules."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

from pydantic import BeforeValidator

from ..secret_reference import SecretReferenceError, find_references, texts_in
from ..template import TemplateError, check
from .builtin_work import size_problems, text_problems
from .errors import DefinitionProblem, excess, show
from .fields import Json, StoredModel, Text, short_for

MAX_URL: Final = 8_192
"""Characters of a URL."""
MAX_HEADERS: Final = 64
RESERVED_HEADERS: Final = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer"),
        *("transfer-encoding", "upgrade"),
    }
)
"""Headers that the worker sets, or that would change how the message is read. So are those that begin with `proxy-`."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?P<target>[/?].*)?",
    re.DOTALL,
)
_TARGET: Final = re.compile(r"[!$&-;=?-Z\[\]_a-z~]|%[0-9A-Fa-f]{2}")
_TAG: Final = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_STATUS: Final = re.compile(r"(?P<first>[2-5][0-9]{2})(?:-(?P<last>[2-5][0-9]{2}))?")
_DECODINGS: Final = 5
_STEP_OUT: Final = frozenset({".", ".."})


class HttpUrl(NamedTuple):
    """A URL in parts."""

    scheme: str
    host: str
    """In small letters; an IPv6 address is in brackets, and in its shortest form."""
    port: int
    target: str
    """The path and the query, which begins with a slash."""

    @property
    def origin(self) -> str:
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"

    @property
    def path(self) -> str:
        """Return the path without the query."""
        return self.target.partition("?")[0]


def _statuses(written: object) -> object:
    if not isinstance(written, list | tuple):
        return written
    return tuple(str(code) if isinstance(code, int) and not isinstance(code, bool) else code for code in written)


class HttpRequest(StoredModel):
    """A request, which a worker with `--builtin http` sends. A text is short for `url`."""

    url: Text
    """The URL. Its path and its query may have templates, whose values are percent-encoded; scheme, host and port have none."""
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] = "GET"
    """The method; one with a body is not `GET` or `HEAD`."""
    headers: dict[str, Text] = {}
    """Headers, each value a template. A secret belongs here, as `${env:NAME}` or `${file:/PATH}`."""
    body: Json = None
    """A text, which is a template, or a mapping or a list, whose texts are templates and which is sent as JSON."""
    success: Annotated[tuple[Text, ...], BeforeValidator(_statuses, json_schema_input_type=tuple[Text | int, ...])] = (
        "200-299",
    )
    """The status codes of a success, each a number or a range such as `200-299`."""
    result: Literal["auto", "json", "status"] = "auto"
    """The result of the step: `auto`: the JSON of the answer, and if it has none, the status and the beginning of its text.
    `json`: the same, but an answer without JSON fails. `status`: `{"status": 200}`, and the rest is not read."""


HttpField: TypeAlias = Annotated[
    HttpRequest, BeforeValidator(short_for("url", str), json_schema_input_type=HttpRequest | str)
]


def split_url(text: str) -> HttpUrl | None:
    """Return the parts of a URL, which may have templates; None: it is malformed."""
    match_ = _URL.fullmatch(text)
    if match_ is None:
        return None
    scheme, host, target = match_["scheme"], match_["host"].lower(), match_["target"] or "/"
    port = int(match_["port"] or DEFAULT_PORTS[scheme])
    if not 0 < port <= 65_535:  # noqa: PLR2004 - TCP has no more
        return None
    if host.startswith("["):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1]).compressed}]"
        except ValueError:
            return None
    return HttpUrl(scheme, host, port, target if target.startswith("/") else f"/{target}")


def target_problem(target: str) -> str | None:
    """Return the reason why a path and a query cannot be sent; None: they can.

    They have no templates any more. A segment `..`, in any encoding, could leave the path that a worker allows.
    """
    if left := _TARGET.sub("", target):
        return f"has {show(left[0])}, which a URL has as %XX only"
    path = target.partition("?")[0]
    for _ in range(_DECODINGS):
        encoded, path = path, unquote(path, errors="replace")
        if encoded == path:
            break
    else:
        return f"is percent-encoded more than {_DECODINGS} times"
    segments = (segment.partition(";")[0] for segment in re.split(r"[/\\]", path))
    return "has a segment `.` or `..`; write the path that it means" if _STEP_OUT & {*segments} else None


def is_success(request: HttpRequest, status: int) -> bool:
    ranges = (code.partition("-") for code in request.success)
    return any(int(first) <= status <= int(last or first) for first, _, last in ranges)


def request_problems(request: HttpRequest) -> Iterator[DefinitionProblem]:
    yield from _url_problems(request.url)
    yield from _header_problems(request.headers)
    yield from _body_problems(request)
    for code in request.success:
        match_ = _STATUS.fullmatch(code)
        if match_ is None or int(match_["last"] or 999) < int(match_["first"]):
            reason = "a status from 200 to 599, or a range such as 200-299"
            yield DefinitionProblem(reason, field="http.success", value=show(code))
    if not request.success:
        yield DefinitionProblem("name the status codes of a success", field="http.success", code="required")
    yield from size_problems("http", request, instead="take the body from `input`")


def _url_problems(text: str) -> Iterator[DefinitionProblem]:
    url, field = split_url(text), "http.url"
    if too_long := excess(len(text), "characters", MAX_URL, field):
        yield from too_long
        return
    if url is None:
        reason = "write http(s)://HOST[:PORT]/PATH; templates may be in the path and the query, and not before"
        yield DefinitionProblem(reason, field=field, value=show(text))
        return
    try:
        references = find_references(text)
        check(text, form="url")
    except SecretReferenceError as error:
        yield DefinitionProblem(str(error), field=field, code="malformed-secret-reference")
    except TemplateError as error:
        yield DefinitionProblem(str(error), field=field, code=error.code)
    else:
        if references:
            reason = "servers and proxies write URLs into their logs; refer to the secret in `headers`"
            yield DefinitionProblem(reason, field=field, value=show(text), code="secret-reference-not-allowed")
        elif problem := target_problem(_TAG.sub("x", url.target)):
            yield DefinitionProblem(f"the part after the host {problem}", field=field, value=show(text))


def _header_problems(headers: dict[str, str]) -> Iterator[DefinitionProblem]:
    yield from excess(len(headers), "headers", MAX_HEADERS, "http.headers")
    known = set[str]()
    for name, text in headers.items():
        if not _HEADER.fullmatch(name):
            reason = "the name of a header is made of letters, digits and hyphens"
            yield DefinitionProblem(reason, field="http.headers", value=show(name))
        elif name.lower() in RESERVED_HEADERS or name.lower().startswith("proxy-"):
            reason = "the worker sets this header, or does without it"
            yield DefinitionProblem(reason, field="http.headers", value=show(name), code="reserved-name")
        elif name.lower() in known:
            reason = "this header is given twice, in different letters"
            yield DefinitionProblem(reason, field="http.headers", value=show(name), code="duplicate-key")
        else:
            yield from text_problems(f"http.headers.{name}", text)
        known.add(name.lower())


def _body_problems(request: HttpRequest) -> Iterator[DefinitionProblem]:
    body = request.body
    if body is None:
        return
    if not isinstance(body, str | dict | list):
        yield DefinitionProblem(
            "must be text, a mapping or a list", field="http.body", value=show(body), code="wrong-type"
        )
    if request.method in {"GET", "HEAD"}:
        reason = f"{request.method} has no body; write another `method`, such as POST"
        yield DefinitionProblem(reason, field="http.body", code="exclusive-fields")
    for text in texts_in(body):
        yield from text_problems("http.body", text)
