"""The request of a definition: what the door checks."""

from typing import Any

import pytest

from tests.domain.test_builtin_work import VALUES, job, problems_of
from tocsin.domain import template
from tocsin.domain.definition.http_request import is_success, split_url, target_problem

URL = "https://api.example.com/orders"


def test_text_is_short_for_url() -> None:
    assert job(http=URL) == job(http={"url": URL})
    assert job(http=URL).function == "tocsin.http"


@pytest.mark.parametrize(
    ("request_", "field", "code"),
    [
        ({}, "http.url", "required"),
        ("orders", "http.url", "invalid-value"),
        ("ftp://example.com/", "http.url", "invalid-value"),
        ("https://{{ input.host }}/", "http.url", "invalid-value"),
        ("https://example.com{{ input.host }}/", "http.url", "invalid-value"),
        ("https://example.com:{{ input.port }}/", "http.url", "invalid-value"),
        ("https://user:secret@example.com/", "http.url", "invalid-value"),
        ("https://example.com:70000/", "http.url", "invalid-value"),
        ("https://[::g]/", "http.url", "invalid-value"),
        ("https://example.com/a b", "http.url", "invalid-value"),
        ("https://example.com/#{{ input.a }}", "http.url", "invalid-value"),
        ("https://example.com/v1/../admin", "http.url", "invalid-value"),
        ("https://example.com/v1/%2e%2E/admin", "http.url", "invalid-value"),
        ("https://example.com/v1/..%252fadmin", "http.url", "invalid-value"),
        ("https://example.com/%252525252525252e", "http.url", "invalid-value"),
        ("https://example.com/" + "x" * 8_192, "http.url", "too-large"),
        ("https://example.com/{{ input.a", "http.url", "malformed-template"),
        ("https://example.com/{{ input.a | urlencode }}", "http.url", "malformed-template"),
        ("https://example.com/?key=${env:KEY}", "http.url", "secret-reference-not-allowed"),
        ("https://example.com/?key=${vault:KEY}", "http.url", "malformed-secret-reference"),
        ({"url": URL, "method": "CONNECT"}, "http.method", "unknown-choice"),
        ({"url": URL, "headers": {"a b": "x"}}, "http.headers", "invalid-value"),
        ({"url": URL, "headers": {"Host": "example.org"}}, "http.headers", "reserved-name"),
        ({"url": URL, "headers": {"transfer-encoding": "chunked"}}, "http.headers", "reserved-name"),
        ({"url": URL, "headers": {"Proxy-Authorization": "x"}}, "http.headers", "reserved-name"),
        ({"url": URL, "headers": {"A": "x", "a": "y"}}, "http.headers", "duplicate-key"),
        ({"url": URL, "headers": {"A": "{{ x }}"}}, "http.headers.A", "malformed-template"),
        ({"url": URL, "headers": {f"A{i}": "x" for i in range(65)}}, "http.headers", "too-large"),
        ({"url": URL, "body": "x"}, "http.body", "exclusive-fields"),
        ({"url": URL, "method": "POST", "body": 5}, "http.body", "wrong-type"),
        ({"url": URL, "method": "POST", "body": {"a": ["{{ x }}"]}}, "http.body", "malformed-template"),
        ({"url": URL, "method": "POST", "body": {"a": "${env:}"}}, "http.body", "malformed-secret-reference"),
        ({"url": URL, "method": "POST", "body": "x" * 70_000}, "http", "too-large"),
        ({"url": URL, "success": [99]}, "http.success", "invalid-value"),
        ({"url": URL, "success": ["299-200"]}, "http.success", "invalid-value"),
        ({"url": URL, "success": []}, "http.success", "required"),
        ({"url": URL, "success": 200}, "http.success", "wrong-type"),
        ({"url": URL, "verify": False}, "http.verify", "unknown-field"),
    ],
)
def test_wrong_request_is_refused_with_code(request_: object, field: str, code: str) -> None:
    assert [(problem.field, problem.code) for problem in problems_of(http=request_)] == [(field, code)]


def test_work_is_said_once() -> None:
    assert [problem.code for problem in problems_of(http=URL, command=["x"])] == ["exclusive-fields"]


@pytest.mark.parametrize(
    ("success", "status", "is_one"),
    [((), 204, True), ((), 304, False), ((200, "404"), 404, True), (("200-204", "409"), 205, False)],
)
def test_success_is_codes_and_ranges(success: tuple[object, ...], status: int, *, is_one: bool) -> None:
    fields: dict[str, Any] = {"url": URL} | ({"success": list(success)} if success else {})
    request = job(http=fields).http
    assert request is not None
    assert is_success(request, status) is is_one


@pytest.mark.parametrize(
    ("text", "origin", "target"),
    [
        ("https://API.example.com:443", "https://api.example.com", "/"),
        ("http://example.com:8080?a=1", "http://example.com:8080", "/?a=1"),
        ("http://[0:0:0::1]/x", "http://[::1]", "/x"),
    ],
)
def test_url_has_one_form(text: str, origin: str, target: str) -> None:
    url = split_url(text)
    assert url is not None
    assert (url.origin, url.target) == (origin, target)


@pytest.mark.parametrize(
    "target", ["/a/..", "/a/%2e./b", "/a/%252e%252e/b", "/a/..;x/b", "/a/..%5Cb", "/a\r\nX: y", "/ü"]
)
def test_target_has_no_way_out(target: str) -> None:
    assert target_problem(target) is not None


def test_target_may_have_dots_elsewhere() -> None:
    assert target_problem("/v1.2/a..b/...?path=../x") is None


def test_value_in_url_stays_one_part() -> None:
    values: dict[str, Any] = {"input": {"id": "../a?b=c#d&e/f é", "rows": [1]}}
    text = template.render("/x/{{ input.id }}?rows={{ input.rows }}", values, limit=200, form="url")
    assert text == "/x/..%2Fa%3Fb%3Dc%23d%26e%2Ff%20%C3%A9?rows=%5B1%5D"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ input['items'] }}", [1, 2]),
        ("{{- input.none -}}", None),
        ("{{ input.yes }}", True),
        ("{{ input.text }}", "{{ job }}"),
        ("{{ input['items'] }} rows", "[1, 2] rows"),
        ("{{ input.yes }}{{ input.none }}", "truenull"),
        ("{% if input.yes %}a{% endif %}", "a"),
        ("{{ '}}' }}", "}}"),
        ("{{ input['items'] | tojson }}", "[1, 2]"),
    ],
)
def test_single_expression_keeps_its_type(text: str, value: object) -> None:
    assert template.render_value(text, VALUES, limit=100) == value


@pytest.mark.parametrize("text", ["{{ input.absent }}", "{{ input.text.upper }}", "{{ input.__class__ }}"])
def test_undefined_value_is_an_error(text: str) -> None:
    with pytest.raises(template.TemplateError):
        template.render_value(text, VALUES, limit=100)
