"""Hostile content, addresses, definitions and pages have no power over the console."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.conftest import SignIn
from tests.console.served import HOSTILE, Console, served
from tests.http.identity_provider import CLIENT, identity_provider
from tests.ojs.served import PATIENCE

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE * 1000)

REVERSED: Final = "safe\u202egnirts\u2066\x07"
SCHEMA: Final = {
    "type": "object",
    "required": ["__proto__", "constructor"],
    "properties": {
        "__proto__": {"type": "string", "title": HOSTILE, "description": REVERSED},
        "constructor": {"type": "string", "format": "constructor"},
        "toString": {"type": "string", "pattern": "(a+)+$"},
        "choice": {"enum": [HOSTILE, "javascript:alert(1)", None, {"a": 1}]},
    },
}
EVENTS: Final = """
delete window.SharedWorker;
window.EventSource = class extends EventTarget {
  constructor() {
    super();
    let sequence = 0;
    setInterval(() => {
      for (let i = 0; i < 50; i++) {
        sequence += 1;
        const stored = { time: new Date().toISOString(), sequence, subject: `e.${sequence}`, fact: { job: "etl", type: "started", text: "x".repeat(10000) } };
        this.dispatchEvent(new MessageEvent("started", { data: JSON.stringify(stored) }));
      }
    }, 100);
    setTimeout(() => this.onopen?.(), 0);
  }
  close() {}
};
window.sent = 0;
const send = window.fetch;
window.fetch = (...given) => { window.sent += 1; return send(...given); };
"""
"""500 events a second, and a count of requests."""


def define(console: Console, name: str, **fields: object) -> None:
    console.api("PUT", f"/v1/jobs/{name}", json={"function": "ok", **fields})


def test_name_of_the_language_may_name_a_job(sign_in: SignIn, console: Console) -> None:
    define(console, "constructor")
    page = sign_in(path="/console/jobs?search=constructor")
    expect(page.get_by_role("link", name="constructor")).to_be_visible()
    expect(page.get_by_text("no runs yet")).to_be_visible()


@pytest.mark.parametrize("path", ["constructor", "__proto__", "toString/x", "..%2f..%2fv1", "jobs%00", "%ff"])
def test_unknown_address_shows_no_page(path: str, sign_in: SignIn) -> None:
    page = sign_in(path=f"/console/{path}")
    expect(page.get_by_role("heading", level=1)).to_have_text("No such page")


@pytest.mark.parametrize("name", ["..%2f..%2f..%2fv1%2fme", "%252e%252e", "%3Fx=1%23y"])
def test_name_in_an_address_reaches_no_other_resource(name: str, sign_in: SignIn) -> None:
    page = sign_in()
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url) if "/v1/jobs" in request.url else None)
    page.goto(f"/console/jobs/{name}")
    expect(page.get_by_role("alert")).to_be_visible()
    assert asked
    assert all(re.search(r"/v1/jobs/[^/?#]+$", url) for url in asked), asked


def test_hostile_input_schema_makes_a_form(sign_in: SignIn, console: Console) -> None:
    define(console, "schemed", input_schema=SCHEMA, input={"__proto__": "a", "constructor": "b"})
    page = sign_in()
    page.goto("/console/jobs/schemed")
    page.get_by_role("button", name="Trigger").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("safe⟨U+202E⟩gnirts⟨U+2066⟩⟨U+0007⟩")
    page.locator('[name="input.__proto__"]').fill("own")
    expect(page.locator('[name="input.constructor"]')).to_have_value("b")
    expect(page.locator('[name="input.toString"]')).to_have_value("")
    with page.expect_request(re.compile("/trigger$")) as sent:
        dialog.get_by_role("button", name="Trigger").click()
    assert '"__proto__":"own"' in (sent.value.post_data or "")
    assert '"constructor":"b"' in (sent.value.post_data or "")
    assert page.evaluate("window.hacked") is None


def test_title_in_a_form_cannot_reorder_text(sign_in: SignIn, console: Console) -> None:
    title = REVERSED.removesuffix("\x07")
    schema = {"type": "object", "properties": {"a": {"type": "string", "title": title, "description": "of a"}}}
    define(console, "titled", input_schema=schema)
    page = sign_in()
    page.goto("/console/jobs/titled")
    page.get_by_role("button", name="Trigger").click()
    expect(page.get_by_role("dialog")).to_contain_text("safe⟨U+202E⟩gnirts⟨U+2066⟩ of a")
    assert "\u202e" not in page.get_by_role("dialog").inner_text()


def test_characters_that_reorder_text_are_shown(sign_in: SignIn, console: Console) -> None:
    define(console, "reversing", description=REVERSED.removesuffix("\x07"))
    page = sign_in()
    page.goto("/console/jobs/reversing")
    expect(page.get_by_text("safe⟨U+202E⟩gnirts⟨U+2066⟩", exact=True)).to_be_visible()
    assert "\u202e" not in page.locator("main").inner_text()


@pytest.fixture
def hostile(console: Console) -> Iterator[dict[str, str]]:
    """An administrator with a hostile name, who gives hostile reasons; the ids of what it did."""
    body = {"identity": HOSTILE, "roles": ["scheduler-admin"]}
    console.tokens["hostile"] = token = console.api("POST", "/v1/tokens", json=body)["token"]
    job = {"function": "broken", "retry": {"max_attempts": 1}, "dead_letter": True, "owner": f"user:{HOSTILE}"}
    console.api("PUT", "/v1/jobs/hostile", "hostile", json={**job, "description": HOSTILE})
    console.api("PUT", "/v1/jobs/hostile-waiting", "hostile", json={"function": "none", "queue": "hostile"})
    console.api("POST", "/v1/queues/hostile/pause", "hostile", json={"reason": HOSTILE})
    failed = console.run("hostile", "failed", reason=HOSTILE)
    begun = time.monotonic()
    while not (letters := console.api("GET", "/v1/dead-letters?job=hostile")["dead_letters"]):
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.1)
    letter = letters[0]["id"]
    console.api("PATCH", f"/v1/dead-letters/{letter}", "hostile", json={"resolved": True, "reason": HOSTILE})
    running = console.run("slow", "running")
    yield {"token": token, "failed": failed, "letter": letter, "running": running}
    console.api("POST", f"/v1/executions/{running}/cancel", json={"reason": HOSTILE})
    console.api("POST", "/v1/queues/hostile/resume", json={})
    del console.tokens["hostile"]


WRITTEN: Final = json.dumps(HOSTILE)[1:-1]
"""Hostile text within JSON."""
SHOWN: Final = {
    "/console/changes?job=hostile": HOSTILE,
    "/console/queues": f"by token:{HOSTILE}: {HOSTILE}",
    "/console/agents": HOSTILE,
    "/console/jobs/hostile": HOSTILE,
    "/console/jobs?search=hostile": f"user:{HOSTILE}",
    "/console/executions?job=hostile": HOSTILE,
    "/console/executions/{failed}": HOSTILE,
    "/console/executions/{running}": HOSTILE,
    "/console/dead-letters?job=hostile&unresolved=false": HOSTILE,
    "/console/dead-letters/{letter}": WRITTEN,
}
"""Pages, and the hostile text on them."""


def unharmed(page: Page) -> bool:
    return bool(page.evaluate("window.hacked === undefined && !document.querySelector('main img, main script')"))


def test_names_and_reasons_are_text(sign_in: SignIn, hostile: dict[str, str]) -> None:
    page = sign_in(token=hostile["token"])
    expect(page.locator(".session")).to_contain_text(HOSTILE)
    for path, text in SHOWN.items():
        page.goto(path.format(**hostile))
        expect(page.locator("main")).to_contain_text(text)
        assert unharmed(page), path


def test_events_have_no_power(sign_in: SignIn, console: Console) -> None:
    page = sign_in(path="/console/events?job=eventful")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    define(console, "eventful", description=HOSTILE)
    page.get_by_text("ledger.defined").or_(page.locator("main summary")).first.click()
    expect(page.locator("main details pre").first).to_contain_text(WRITTEN)
    assert unharmed(page)


def test_what_if_has_no_power(sign_in: SignIn, hostile: dict[str, str]) -> None:
    page = sign_in(path="/console/what-if?job=hostile&days=1")
    editor = page.get_by_label("Definition to try, as YAML")
    expect(editor).to_have_value(re.compile(re.escape("onerror")))
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("region", name="hostile", exact=True)).to_be_visible()
    assert unharmed(page)
    page.get_by_label("Slots of workers by queue").fill(HOSTILE)
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("alert")).to_contain_text("<img")
    editor.fill(f"name: hostile\nfunction: ok\nschedule: {json.dumps(HOSTILE)}")
    page.get_by_label("Slots of workers by queue").fill("")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("alert")).to_contain_text("expression: it has 3 fields")
    assert unharmed(page)
    assert hostile


LAUGHS: Final = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAUGHS, "aliases of YAML"),
        ("input: &a {b: *a}", "aliases of YAML"),
        ("x: " + "[" * 100_000, "maxDepth"),
        ("x" * 200_001, "200,000 characters"),
    ],
)
def test_hostile_yaml_is_refused_at_once(text: str, reason: str, sign_in: SignIn) -> None:
    page = sign_in(path="/console/new-job")
    page.get_by_label("Definition, as YAML").fill(text)
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("alert")).to_contain_text(reason)


def test_injected_script_does_not_run(browser: Browser, console: Console) -> None:
    page = browser.new_page(base_url=console.url)
    page.goto("/console")
    expect(page.get_by_label("Token")).to_be_visible()
    page.evaluate("""() => {
        let refused = 0;
        document.addEventListener("securitypolicyviolation", () => { document.body.dataset.refused = ++refused; });
        const script = document.createElement("script");
        script.textContent = "window.hacked = 1";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.hacked = 2'><iframe src='javascript:parent.hacked = 3'></iframe>");
        try { setTimeout("window.hacked = 4"); } catch { /* refused */ }
    }""")
    expect(page.locator("body")).to_have_attribute("data-refused", re.compile("[3-9]"))
    assert page.evaluate("window.hacked") is None
    page.close()


def test_page_of_another_origin_frames_nothing(browser: Browser, console: Console) -> None:
    page = browser.new_page()
    page.set_content(f'<iframe src="{console.url}/console"></iframe>')
    page.wait_for_load_state()
    expect(page.frame_locator("iframe").get_by_label("Token")).to_have_count(0)
    assert page.frames[1].url.startswith("chrome-error:")
    page.close()


def test_back_button_shows_nothing_after_sign_out(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs")
    expect(page.get_by_role("link", name="nightly")).to_be_visible()
    page.goto("/console/queues")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.go_back()
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.get_by_role("link", name="nightly")).to_have_count(0)
    assert page.evaluate("document.cookie") == ""


def size(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


@pytest.mark.parametrize("path", ["/console/events", "/console"])
@pytest.mark.full
def test_many_events_neither_grow_nor_flood(path: str, sign_in: SignIn) -> None:
    page = sign_in()
    page.add_init_script(EVENTS)
    page.goto(path)
    if path.endswith("events"):
        expect(page.locator("main tbody tr")).to_have_count(200)
    else:
        expect(page.locator(".figures")).to_be_visible()
    before = size(page)
    counted = page.evaluate(
        "new Promise((done) => { const first = window.sent, begun = performance.now(); setTimeout(() => done([window.sent - first, (performance.now() - begun) / 1000]), 8000); })"
    )
    requests, seconds = counted
    assert requests <= 2 * seconds
    assert size(page) < before + 500


@pytest.mark.full
def test_slow_answer_is_shown_although_events_go_on(sign_in: SignIn) -> None:
    page = sign_in(path="/console/jobs")
    page.add_init_script(EVENTS)
    page.add_init_script("""const quick = window.fetch;
        window.fetch = async (url, options) => {
          if (String(url).includes("/v1/overview")) await new Promise((done) => setTimeout(done, 2500));
          options?.signal?.throwIfAborted();
          return quick(url, options);
        };""")
    page.goto("/console")
    expect(page.locator(".figures")).to_be_visible()


@pytest.mark.full
def test_job_with_many_tags_is_shown(sign_in: SignIn, console: Console) -> None:
    define(console, "tagged", tags=[f"tag-{number}" for number in range(2_000)])
    page = sign_in()
    page.goto("/console/jobs/tagged")
    expect(page.locator("main a.tag")).to_have_count(2_000)


def test_author_is_offered_what_the_job_permits(sign_in: SignIn, console: Console) -> None:
    execution = console.run("slow", "running")
    page = sign_in(role="scheduler-author", path=f"/console/executions/{execution}")
    expect(page.locator("h1")).to_contain_text("slow")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    console.api("POST", f"/v1/executions/{execution}/cancel", json={})
    expect(page.locator("h1 .state-cancelled")).to_be_visible()
    expect(page.get_by_role("button", name="Run again")).to_have_count(0)


def test_person_comes_from_the_provider_to_the_page(browser: Browser, tmp_path: Path) -> None:
    with (
        identity_provider() as provider,
        served(tmp_path, TOCSIN_AUTH__IAM_URL=provider.url, TOCSIN_AUTH__CLIENT_ID=CLIENT) as console,
    ):
        url = console.url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - what it listens on if tokens are required
        page = browser.new_page(base_url=url)
        page.goto("/console/jobs?search=nightly")
        page.get_by_role("link", name="Sign in with the identity provider").click()
        expect(page.get_by_role("link", name="nightly")).to_be_visible()
        expect(page).to_have_url(f"{url}/console/jobs?search=nightly")
        [cookie] = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        provider.sign_ins.refusal = {"error": "access_denied", "error_description": HOSTILE}
        page.get_by_role("link", name="Sign in with the identity provider").click()
        expect(page.get_by_text(HOSTILE)).to_be_visible()
        assert page.evaluate("window.hacked") is None
        page.get_by_role("link", name="Sign in again").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.close()


@pytest.mark.full
def test_dense_graph_does_not_stop_the_page(sign_in: SignIn, console: Console) -> None:
    steps = [
        {"step": f"s{number}", "function": "ok", "depends_on": [f"s{before}" for before in range(number)]}
        for number in range(200)
    ]
    console.api("PUT", "/v1/jobs/dense", json={"dag": steps})
    execution = console.api("POST", "/v1/jobs/dense/trigger", json={})["execution_id"]
    page = sign_in(path=f"/console/executions/{execution}")
    expect(page.get_by_text("too many for a picture")).to_be_visible()
    console.wait(execution, "completed")  # so that no other test works beside it
