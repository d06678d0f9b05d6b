"""The files of the console, and the paths that reach no file."""

import hashlib
import json
import re
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.http.conftest import World
from tests.http.console.browsers import listening, raw_request
from tocsin.adapters.http.console.files import CONTENT_SECURITY_POLICY, INDEX, MEDIA_TYPES, console_files
from tocsin.settings import Server, Settings

ROOT: Final = Path(__file__).parents[3]
STATIC: Final = ROOT / "src/tocsin/adapters/http/console/static"
OPENAPI: Final = ROOT / "schemas/openapi.json"


@pytest.mark.parametrize("path", ["/console", "/console/", "/console/jobs/nightly", "/console/jobs/a%2Fb?tab=x"])
async def test_each_view_is_the_same_page(url: str, http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(url + path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert answer.content == console_files()[INDEX].body
    assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


async def test_page_has_no_inline_script_or_style() -> None:
    page = console_files()[INDEX].body.decode()
    assert "<style" not in page
    assert "style=" not in page
    assert "<script>" not in page
    assert "://" not in page  # it loads nothing of another origin


async def test_browser_keeps_a_file_until_it_changes(url: str, http: httpx.AsyncClient) -> None:
    http.headers["Accept-Encoding"] = "identity"
    first = await http.get(f"{url}/console/assets/{INDEX}")
    tag = first.headers["ETag"]
    assert (first.status_code, first.headers["Cache-Control"]) == (200, "no-cache")
    assert hashlib.sha256(first.content).hexdigest().startswith(tag.strip('"'))
    for known in (tag, f'"other", W/{tag}', "*"):
        again = await http.get(f"{url}/console/assets/{INDEX}", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
    changed = await http.get(f"{url}/console/assets/{INDEX}", headers={"If-None-Match": '"other"'})
    assert changed.status_code == 200


SCRIPT = "vendor/uplot.js"


@pytest.mark.parametrize(
    "accepted", ["gzip", "GZIP", "br, gzip;q=0.1", "*", "deflate, *;q=0.5", "gzip ; q=1.000", "identity;q=0, gzip"]
)
async def test_file_is_compressed_for_those_who_accept_it(url: str, http: httpx.AsyncClient, accepted: str) -> None:
    answer = await http.get(f"{url}/console/assets/{SCRIPT}", headers={"Accept-Encoding": accepted})
    assert (answer.headers["Content-Encoding"], answer.headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert answer.content == console_files()[SCRIPT].body
    assert int(answer.headers["Content-Length"]) < len(answer.content) / 2


@pytest.mark.parametrize(
    "accepted",
    ["", "identity", "br", "gzip;q=0", "gzip;q=0.000, *", "*;q=0", "gzip;q=nan", "gzip;q=", "x-gzipped", ",;="],
)
async def test_file_is_sent_plain_to_others(url: str, http: httpx.AsyncClient, accepted: str) -> None:
    answer = await http.get(f"{url}/console/assets/{SCRIPT}", headers={"Accept-Encoding": accepted})
    assert "Content-Encoding" not in answer.headers
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert int(answer.headers["Content-Length"]) == len(console_files()[SCRIPT].body)


async def test_each_form_of_a_file_has_its_tag(url: str, http: httpx.AsyncClient) -> None:
    tags = dict[str, str]()
    for coding in ("gzip", "identity"):
        headers = {"Accept-Encoding": coding}
        head = await http.head(f"{url}/console/assets/{SCRIPT}", headers=headers)
        first = await http.get(f"{url}/console/assets/{SCRIPT}", headers=headers)
        assert {**head.headers, "date": ""} == {**first.headers, "date": ""}
        tags[coding] = first.headers["ETag"]
        again = await http.get(
            f"{url}/console/assets/{SCRIPT}", headers={**headers, "If-None-Match": f'"other", {tags[coding]}'}
        )
        assert (again.status_code, again.content) == (304, b"")
        assert (again.headers["ETag"], again.headers["Vary"]) == (tags[coding], "Accept-Encoding")
        assert "Content-Encoding" not in again.headers
    assert tags["gzip"] != tags["identity"]
    # The plain form is not taken for the compressed one.
    other = await http.get(
        f"{url}/console/assets/{SCRIPT}", headers={"Accept-Encoding": "gzip", "If-None-Match": tags["identity"]}
    )
    assert other.status_code == 200


def test_files_of_known_types_only_are_served() -> None:
    assert {f".{path.rpartition('.')[2]}" for path in console_files()} <= MEDIA_TYPES.keys()


@pytest.mark.parametrize(
    "path",
    [
        b"../files.py",
        b"..%2ffiles.py",
        b"..%2Ffiles.py",
        b"%2e%2e/%2e%2e/server.py",
        b"..%5cfiles.py",
        b"%2Fetc%2Fpasswd",
        b"/etc/passwd",
        b"index.html%00.js",
        b"%00",
        b"vendor/..%2findex.html",
        b"./index.html",
        b"",
        b"__init__.py",
        b"static/index.html",
        b"%ff%fe",
        b"index.html/",
    ],
)
async def test_no_path_reaches_another_file(url: str, path: bytes) -> None:
    answer = await raw_request(url, b"GET /console/assets/" + path + b" HTTP/1.1")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert b"application/problem+json" in head
    assert b"urn:tocsin:problem:not-found" in body


async def test_head_answers_without_the_file(url: str) -> None:
    answer = await raw_request(url, b"HEAD /console/assets/index.html HTTP/1.1")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body == b""


async def test_files_cannot_be_changed(url: str, http: httpx.AsyncClient) -> None:
    for method in ("POST", "PUT", "DELETE"):
        answer = await http.request(method, f"{url}/console/assets/{INDEX}")
        assert answer.json()["type"] == "urn:tocsin:problem:method-not-allowed"


async def test_browser_alone_is_redirected_to_the_console(url: str, http: httpx.AsyncClient) -> None:
    browser = await http.get(url, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (browser.status_code, browser.headers["Location"], browser.headers["Vary"]) == (303, "/console", "Accept")
    program = await http.get(url)
    assert program.json()["type"] == "urn:tocsin:problem:not-found"


async def test_console_can_be_switched_off(world: World, http: httpx.AsyncClient) -> None:
    world.settings = Settings(server=Server(console=False))
    async with listening(world) as url:
        for path in ("/", "/console", "/console/session", f"/console/assets/{INDEX}"):
            answer = await http.get(url + path, headers={"Accept": "text/html"})
            assert answer.status_code == 404, path
        assert (await http.get(f"{url}/v1/jobs")).status_code == 200


def test_settings_name_the_console_to_people() -> None:
    local = "http://127.0.0.1:8062"
    assert Server().console_url(local) == f"{local}/console"
    assert (
        Server(public_url="https://Tocsin.example.com:443/").console_url(local) == "https://tocsin.example.com/console"
    )
    assert Server(console=False).console_url(local) is None


def test_scripts_use_the_public_api_only() -> None:
    """Each path that a script makes is in the published description, and only three scripts send requests."""
    scripts = {path: path.read_text() for path in STATIC.rglob("*.js") if "vendor" not in path.parts}
    senders = {
        path.name for path, text in scripts.items() if re.search(r"\b(fetch|EventSource|XMLHttpRequest)\(", text)
    }
    assert senders == {"api.js", "stream.js", "stream-worker.js"}
    published = [path.split("/")[2:] for path in json.loads(OPENAPI.read_text())["paths"] if path.startswith("/v1/")]
    asked = [path for text in scripts.values() for path in re.findall(r'\bv1\((\[[^\]]+\]|"[^"]+")', text)]
    assert len(asked) > 30
    for path in asked:
        parts = path[1:-1].split(", " if path.startswith("[") else "/")
        texts = [part.strip('"') if path.startswith('"') or part.startswith('"') else None for part in parts]
        assert any(
            len(texts) == len(known) and all(text in {None, part} for text, part in zip(texts, known, strict=True))
            for known in published
        ), path
