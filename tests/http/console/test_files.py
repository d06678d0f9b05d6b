"""The files of the console, and the paths that reach no file."""

import hashlib

import httpx
import pytest

from tests.http.conftest import World
from tests.http.console.browsers import listening, raw_request
from tocsin.adapters.http.console.files import CONTENT_SECURITY_POLICY, INDEX, MEDIA_TYPES, console_files
from tocsin.settings import Server, Settings


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
    first = await http.get(f"{url}/console/assets/{INDEX}")
    tag = first.headers["ETag"]
    assert (first.status_code, first.headers["Cache-Control"]) == (200, "no-cache")
    assert hashlib.sha256(first.content).hexdigest().startswith(tag.strip('"'))
    for known in (tag, f'"other", W/{tag}', "*"):
        again = await http.get(f"{url}/console/assets/{INDEX}", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
    changed = await http.get(f"{url}/console/assets/{INDEX}", headers={"If-None-Match": '"other"'})
    assert changed.status_code == 200


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
