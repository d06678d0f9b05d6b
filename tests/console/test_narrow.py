"""Pages of a phone's width show what they show on a wide screen."""

from itertools import pairwise

import pytest
from playwright.sync_api import Route, expect

from tests.console.conftest import SignIn
from tests.console.served import Console
from tests.ojs.served import PATIENCE

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE * 1000)
NARROW = 360
LONG = "a-name-of-letters-without-a-place-to-break"
LINK = f"https://example.com/{'a' * 80}"
LABELS = """(labels) => labels.map((one) => one.getBoundingClientRect()).filter((box) => box.width > 0)
  .map((box) => [box.left, box.right])"""
COLOURED = """(canvas, name) => {
  const sample = document.body.appendChild(document.createElement("i"));
  sample.style.color = `var(${name})`;
  const wanted = getComputedStyle(sample).color.match(/[0-9]+/g).map(Number);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) found += wanted.every((part, j) => Math.abs(data[i + j] - part) < 8);
  return found;
}"""
"""The number of pixels of a canvas that have a colour of the page."""

TALLEST = """(canvas) => {
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const isWarm = (at) => data[at] > data[at + 2] + 60;
  const columns = Array.from({ length: width }, (_, x) => Array.from({ length: height }, (_, y) => 4 * (y * width + x)));
  return Math.max(...columns.map((column) => column.filter(isWarm).length));
}"""
"""The most pixels of a warm colour, such as that of the 95th percentile, in a column of a canvas."""


def test_long_word_makes_no_page_wider(sign_in: SignIn, console: Console) -> None:
    console.api("PUT", "/v1/jobs/wordy", json={"function": "ok", "description": LINK})
    page = sign_in(path="/console/jobs/wordy", width=NARROW)
    expect(page.get_by_role("paragraph").filter(has_text=LINK)).to_be_visible()  # the definition has it too
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_long_label_makes_no_dialog_wider(sign_in: SignIn, console: Console) -> None:
    label = "x" * 60
    types: list[dict[str, object]] = [
        {"type": "string"},
        {"type": "boolean"},
        {"enum": [label * 2]},
        {"type": "object"},
    ]
    fields = {f"{label}{number}": kind | {"description": label} for number, kind in enumerate(types)}
    console.api("PUT", f"/v1/jobs/{LONG}", json={"function": "ok", "input_schema": {"properties": fields}})
    page = sign_in(path=f"/console/jobs/{LONG}", width=NARROW)
    page.get_by_role("button", name="Trigger").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("[name^='input.']")).to_have_count(len(types))
    assert dialog.evaluate("(one) => one.scrollWidth - one.clientWidth") == 0


def test_long_name_leaves_room_beside_it(sign_in: SignIn, console: Console) -> None:
    console.api("PUT", f"/v1/jobs/{LONG}", json={"function": "ok"})
    page = sign_in(path=f"/console/jobs?search={LONG}", width=NARROW)
    expect(page.get_by_role("row").last.locator(".state")).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("width", [NARROW, 1280])
def test_attempts_have_bars_at_each_width(sign_in: SignIn, console: Console, width: int) -> None:
    page = sign_in(path=f"/console/executions/{console.run('etl', 'completed')}", width=width)
    expect(page.locator(".lane-bars")).to_have_count(4)
    for bars in page.locator(".lane-bars").all():
        box = bars.bounding_box()
        assert box is not None
        assert box["width"] > width / 2


@pytest.mark.parametrize("width", [NARROW, 1280])
@pytest.mark.parametrize("span", ["1 h", "30 d"])
def test_labels_of_time_are_apart(sign_in: SignIn, span: str, width: int) -> None:
    page = sign_in(path="/console/jobs/minutely", width=width)
    page.get_by_role("button", name=span, exact=True).click()
    expect(page.get_by_role("button", name=span, exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".tick-labels span").first).to_be_visible()  # the new window is loaded first
    labels = page.locator(".tick-labels span").evaluate_all(LABELS)
    assert len(labels) > 1
    assert all(first[1] <= second[0] for first, second in pairwise(labels))
    line = page.locator(".tick-labels").bounding_box()
    assert line is not None
    assert labels[-1][1] <= line["x"] + line["width"]


def test_first_duration_is_drawn(sign_in: SignIn, console: Console) -> None:
    console.api("PUT", "/v1/jobs/young", json={"function": "ok"})
    console.run("young", "completed")
    page = sign_in(path="/console/jobs/young")
    chart = page.get_by_role("region", name="Durations", exact=True).locator("canvas")
    expect(chart).to_be_visible()
    assert chart.evaluate(COLOURED, "--warn") > 4


def test_line_has_no_points(sign_in: SignIn, console: Console) -> None:
    console.api("PUT", "/v1/jobs/even", json={"function": "ok"})
    console.run("even", "completed")
    page = sign_in()

    def repeat(route: Route) -> None:
        answer = route.fetch()
        [bucket] = answer.json()["buckets"]
        starts = [f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3)]
        route.fulfill(response=answer, json={"sampled": False, "buckets": [bucket | {"start": at} for at in starts]})

    page.route("**/durations?*", repeat)
    page.goto("/console/jobs/even")
    chart = page.get_by_role("region", name="Durations", exact=True).locator("canvas")
    expect(chart).to_be_visible()
    assert 0 < chart.evaluate(TALLEST) < 5
