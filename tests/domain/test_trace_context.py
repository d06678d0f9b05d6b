"""The ids of traces, their header, and the selection of traces to export."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import ID
from tocsin.domain import ids, trace_context
from tocsin.domain.trace_context import MAX_LENGTH, Sampling, TraceContext

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"
PARENT = TraceContext(TRACE, SPAN, is_sampled=True)


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (GIVEN, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_valid_header_is_read(text: str, *, is_sampled: bool) -> None:
    assert trace_context.parse(text) == TraceContext(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        b"00",
        "",
        "00",
        GIVEN.upper(),
        f"{GIVEN}\n",
        f" {GIVEN}",
        f"{GIVEN}-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-{'x' * MAX_LENGTH}",
        "\udc80" * 55,
    ],
)
def test_invalid_header_is_ignored(text: object) -> None:
    assert trace_context.parse(text) is None


@given(trace=st.integers(1, 2**128 - 1), span=st.integers(1, 2**64 - 1), is_sampled=st.booleans())
def test_header_is_read_as_written(trace: int, span: int, *, is_sampled: bool) -> None:
    context = TraceContext(f"{trace:032x}", f"{span:016x}", is_sampled)
    assert trace_context.parse(context.traceparent) == context


@given(st.integers(0, 2**128 - 1), st.floats(0, 1), st.floats(0, 1))
def test_larger_ratio_selects_the_same_traces_and_more(trace: int, one: float, other: float) -> None:
    lower, higher = sorted((one, other))
    trace_id = f"{trace:032x}"
    assert not Sampling(lower, follows_parent=True).selects(trace_id) or Sampling(higher, True).selects(trace_id)
    assert Sampling(1, follows_parent=True).selects(trace_id)
    assert not Sampling(0, follows_parent=True).selects(trace_id)


def test_ratio_is_the_share_of_executions() -> None:
    """The upper bits of a UUIDv7 are a time and constants, and must not count."""
    chosen = Sampling(0.1, follows_parent=True)
    made = [trace_context.trace_id_of(ids.keyed_trigger_id("job", str(number))) for number in range(5_000)]
    assert 400 < sum(map(chosen.selects, made)) < 600


OWN = TraceContext(trace_context.trace_id_of(ID), trace_context.span_id(ID, "execution"), is_sampled=True)


@pytest.mark.parametrize(
    ("parent", "sampling", "expected"),
    [
        (None, None, None),
        (None, Sampling(1, follows_parent=True), OWN.traceparent),
        (None, Sampling(0, follows_parent=True), f"{OWN.traceparent[:-2]}00"),
        (PARENT, None, GIVEN),
        (PARENT, Sampling(0, follows_parent=True), GIVEN),
        (PARENT, Sampling(0, follows_parent=False), f"{GIVEN[:-2]}00"),
        (TraceContext(TRACE, SPAN, is_sampled=False), Sampling(1, follows_parent=True), f"{GIVEN[:-2]}00"),
        (TraceContext(TRACE, SPAN, is_sampled=False), Sampling(1, follows_parent=False), GIVEN),
    ],
)
def test_beginning_decides_on_the_export(
    parent: TraceContext | None, sampling: Sampling | None, expected: str | None
) -> None:
    assert trace_context.begin(ID, parent, sampling) == expected


def test_spans_of_an_execution_have_different_ids() -> None:
    contexts = [
        trace_context.context_in(ID, GIVEN, "execution"),
        trace_context.context_in(ID, GIVEN, "attempt", "a", 1),
        trace_context.context_in(ID, GIVEN, "attempt", "a", 11),
        trace_context.context_in(ID, GIVEN, "attempt", "a1", 1),
        trace_context.context_in(ID, GIVEN, "process", "a", 1, 1),
        trace_context.context_in(ID, GIVEN, "process", "a", 1, 2),
        trace_context.context_in("another", GIVEN, "execution"),
    ]
    assert len({context.span_id for context in contexts if context}) == len(contexts)
    assert {context.trace_id for context in contexts if context} == {TRACE}


def test_id_of_a_span_stays_the_same() -> None:
    """Workers of one version and stages of another must agree."""
    assert trace_context.span_id("0193a5b0-0000-7000-8000-000000000001", "process", "main", 1, 1) == "0ad7c26ded02ae09"


@pytest.mark.parametrize("text", [None, "nonsense"])
def test_execution_without_a_trace_has_no_contexts(text: str | None) -> None:
    assert trace_context.context_in(ID, text, "execution") is None
    assert trace_context.context_in(ID, text, "process", "main", 1, 1) is None
