"""Requests to a real server: what is sent, and the results of answers."""

import json
import ssl
from typing import Any, Final

import pytest
import trustme

from tests.domain.given import ID
from tests.worker.builtin.http_given import HttpBench, Server, answer, json_answer
from tocsin.domain.trace_context import context_in, own_context
from tocsin.settings import SettingsError
from tocsin.settings.builtin import HttpRules
from tocsin.worker.builtin.http_request import HttpFunction

JSON_POST = {"method": "POST", "body": {"id": "{{ input.id }}", "text": "no {{ input.id }}", "more": [None, 1.5]}}

OWN: Final = own_context(ID, is_sampled=True).traceparent
RUN: Final = getattr(context_in(ID, OWN, "process", "main", 1, 1), "traceparent", None)
OTHER: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def head_of(request: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return first, {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


async def test_request_has_body_of_input(requests: HttpBench) -> None:
    await requests.execute(JSON_POST, input={"id": 7})
    [sent] = requests.server.requests
    first, headers = head_of(sent)
    assert first == "POST / HTTP/1.1"
    assert headers == {
        "host": f"127.0.0.1:{requests.server.port}",
        "user-agent": "tocsin",
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "connection": "close",
        "content-length": str(len(sent.partition(b"\r\n\r\n")[2])),
    }
    assert json.loads(sent.partition(b"\r\n\r\n")[2]) == {"id": 7, "text": "no 7", "more": [None, 1.5]}


@pytest.mark.parametrize(("own", "expected"), [({}, RUN), ({"Traceparent": OTHER}, OTHER)])
async def test_request_continues_the_trace(own: dict[str, str], expected: str, requests: HttpBench) -> None:
    requests.traceparent = OWN
    await requests.execute({"headers": own})
    assert head_of(requests.server.requests[0])[1]["traceparent"] == expected


async def test_text_is_sent_as_text(requests: HttpBench) -> None:
    await requests.execute({"method": "PUT", "body": "day {{ input.day }}"}, input={"day": "é\n"})
    assert requests.server.requests[0].endswith("day é\n".encode())
    assert head_of(requests.server.requests[0])[1]["content-type"] == "text/plain; charset=utf-8"


async def test_post_without_body_says_so(requests: HttpBench) -> None:
    await requests.execute({"method": "POST"})
    assert head_of(requests.server.requests[0])[1]["content-length"] == "0"


async def test_value_stays_one_part_of_the_url(requests: HttpBench) -> None:
    await requests.execute({"url": "/orders/{{ input.id }}?day={{ input.day }}"}, input={"id": "a/b?c", "day": "1&x=2"})
    assert head_of(requests.server.requests[0])[0] == "GET /orders/a%2Fb%3Fc?day=1%26x%3D2 HTTP/1.1"


@pytest.mark.parametrize("value", ["..", ".", "../admin", "%2e%2e", "..\\admin", "..;a"])
async def test_value_does_not_leave_the_path(value: str, requests: HttpBench) -> None:
    requests.offer(urls=[f"{requests.server.url}/v1"])
    failure = await requests.fail({"url": "/v1/{{ input.id }}"}, input={"id": value})
    assert (failure.type, failure.retryable) == ("wrong_input", False)
    assert requests.server.requests == []


async def test_value_with_line_break_adds_no_header(requests: HttpBench) -> None:
    failure = await requests.fail({"headers": {"X-Day": "{{ input.day }}"}}, input={"day": "1\r\nX-Admin: yes"})
    assert (failure.type, failure.retryable) == ("wrong_input", False)
    assert requests.server.requests == []


async def test_header_gets_secret_that_is_redacted(requests: HttpBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", 'hunter"22 /')
    requests.server.response = json_answer(b'{"hunter\\"22 /": ["got hunter\\"22 /"]}')
    request = {"headers": {"Authorization": "Bearer ${env:DB_PASSWORD}"}}
    assert await requests.execute(request) == {"${env:DB_PASSWORD}": ["got ${env:DB_PASSWORD}"]}
    assert head_of(requests.server.requests[0])[1]["authorization"] == 'Bearer hunter"22 /'


@pytest.mark.parametrize("echo", ['hunter"22 /', 'hunter\\"22 /', "hunter%2222%20%2F"])
async def test_secret_is_in_no_error(echo: str, requests: HttpBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", 'hunter"22 /')
    requests.server.response = answer(f"wrong password {echo}".encode(), 403)
    failure = await requests.fail({"headers": {"X-Password": "${env:DB_PASSWORD}"}})
    assert failure.message.endswith("answered 403:\nwrong password ${env:DB_PASSWORD}")


async def test_cut_leaves_no_part_of_a_secret(requests: HttpBench, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "0123456789" * 20
    monkeypatch.setenv("DB_PASSWORD", secret)
    for length in (3_990, 4_096 + 8_192 - 100):
        requests.server.response = answer(b"x" * length + secret.encode() * 50)
        result = await requests.execute({"headers": {"X-Password": "${env:DB_PASSWORD}"}})
        assert isinstance(result, dict)
        assert "0123456789" not in str(result["text"])
        requests = HttpBench(requests.server)


@pytest.mark.parametrize(
    "url",
    ["/v10/x", "/v", "/", "http://127.0.0.1:1/v1/x", "https://127.0.0.1:{port}/v1/x", "http://localhost:{port}/v1/x"],
)
async def test_url_outside_the_rules_is_not_requested(url: str, requests: HttpBench) -> None:
    requests.offer(urls=[f"{requests.server.url}/v1"])
    failure = await requests.fail({"url": url.format(port=requests.server.port)})
    assert failure.type == "http_not_allowed"
    assert "builtin.http.urls" in failure.message
    assert requests.server.requests == []


@pytest.mark.parametrize("url", ["/v1", "/v1/", "/v1/x", "/v1?a=1"])
async def test_rule_covers_what_begins_with_its_path(url: str, requests: HttpBench) -> None:
    requests.offer(urls=[f"{requests.server.url}/v1"])
    await requests.execute({"url": url})
    assert len(requests.server.requests) == 1


def test_rules_need_a_url() -> None:
    with pytest.raises(SettingsError) as raised:
        HttpFunction(HttpRules())
    assert [(p.field, p.code) for p in raised.value.problems] == [("builtin.http.urls", "required")]


@pytest.mark.parametrize(
    "rules",
    [
        {"urls": ["example.com"]},
        {"urls": ["https://example.com/?a"]},
        {"urls": ["https://*.example.com"]},
        {"urls": ["https://example.com/../x"]},
        {"networks": ["10.0.0.1/8"]},
        {"networks": ["internal"]},
        {"ca_file": "ca.pem"},
    ],
)
def test_wrong_rule_is_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        HttpRules.model_validate(rules)


@pytest.mark.parametrize(
    ("response", "result"),
    [
        (json_answer(b'{"rows": [1, null]}'), {"rows": [1, None]}),
        (json_answer(b"5", 201), 5),
        (answer(b"[1]", Content_Type="application/problem+json; charset=utf-8"), [1]),
        (answer(b"[1]"), {"status": 200, "text": "[1]"}),
        (json_answer(b"[1"), {"status": 200, "text": "[1"}),
        (json_answer(b"[NaN]"), {"status": 200, "text": "[NaN]"}),
        (json_answer(b"[" * 100 + b"]" * 100), {"status": 200, "text": "[" * 100 + "]" * 100}),
        (json_answer(b"\xff\0"), {"status": 200, "text": "��"}),
        (json_answer(b'"' + b"x" * 70_000 + b'"'), {"status": 200, "text": '"' + "x" * 4_095, "is_cut": True}),
        (answer(status=204), {"status": 204, "text": ""}),
    ],
)
async def test_answer_becomes_result(response: bytes, result: object, requests: HttpBench) -> None:
    requests.server.response = response
    assert await requests.execute({}) == result


async def test_result_may_be_the_status(requests: HttpBench) -> None:
    requests.server.response = json_answer(b"[1]", 202)
    assert await requests.execute({"result": "status"}) == {"status": 202}


@pytest.mark.parametrize(
    "response", [answer(b"<html>"), json_answer(b"<html>"), json_answer(b'"' + b"x" * 70_000 + b'"')]
)
async def test_json_may_be_required(response: bytes, requests: HttpBench) -> None:
    requests.server.response = response
    failure = await requests.fail({"result": "json"})
    assert (failure.type, failure.retryable) == ("invalid_result", False)


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        (302, False),
        (400, False),
        (401, False),
        (404, False),
        (408, True),
        (425, True),
        (429, True),
        (500, True),
        (503, True),
    ],
)
async def test_other_status_is_a_failure(status: int, *, retryable: bool, requests: HttpBench) -> None:
    requests.server.response = answer(b"why", status)
    failure = await requests.fail({})
    assert (failure.type, failure.retryable, failure.details) == (
        f"http_status_{status}",
        retryable,
        {"status": status},
    )
    assert failure.message.endswith(":\nwhy")


async def test_author_names_successes(requests: HttpBench) -> None:
    requests.server.response = answer(b"gone", 410)
    assert await requests.execute({"success": ["200-299", 410]}) == {"status": 410, "text": "gone"}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "120"}, 120),
        ({"Retry_After": "Mon, 02 Mar 2026 12:01:00 GMT", "Date": "Mon, 02 Mar 2026 12:00:00 GMT"}, 60),
        ({"Retry_After": "Mon, 02 Mar 2026 12:00:00 GMT", "Date": "Mon, 02 Mar 2026 12:01:00 GMT"}, 0),
        ({"Retry_After": "Mon, 02 Mar 2026 12:01:00 GMT"}, None),
        ({"Retry_After": "soon"}, None),
        ({"Retry_After": "9" * 400}, None),
        ({}, None),
    ],
)
async def test_server_may_ask_for_a_delay(headers: dict[str, str], seconds: float | None, requests: HttpBench) -> None:
    requests.server.response = answer(b"", 429, **headers)
    assert (await requests.fail({})).retry_after == seconds


async def test_no_server_is_a_connection_error(requests: HttpBench) -> None:
    requests.offer(urls=["http://127.0.0.1:1"])
    failure = await requests.fail({"url": "http://127.0.0.1:1/"})
    assert (failure.type, failure.retryable) == ("http_connection_failed", True)


async def test_certificate_is_that_of_the_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("api.test").configure_cert(context)
    ca_file = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    async with Server().running(context) as server:
        for host, trusts, is_sent in (
            ("api.test", True, True),
            ("api.test", False, False),
            ("other.test", True, False),
        ):
            url = f"https://{host}:{server.port}/"
            requests = HttpBench(server)
            requests.offer(names={host: "127.0.0.1"}, urls=[url], ca_file=str(ca_file) if trusts else None)
            server.requests.clear()
            if is_sent:
                await requests.execute({"url": url})
                assert head_of(server.requests[0])[1]["host"] == f"{host}:{server.port}"
            else:
                failure = await requests.fail({"url": url})
                assert failure.type == "http_connection_failed"
                assert "certificate" in failure.message.lower()
                assert server.requests == []
