"""The settings of triggers: which subjects may be captured, and for whom."""

from typing import Any

import pytest

from tocsin.settings import Settings, load
from tocsin.settings.loader import SettingsError
from tocsin.subjects import overlap


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("orders.new", "orders.new", True),
        ("orders.new", "orders.old", False),
        ("orders.>", "orders.new", True),
        ("orders.>", "orders", False),
        ("orders.*", "*.new", True),
        ("orders.*", "orders.new.eu", False),
        ("orders.*.paid", "orders.eu.*", True),
        ("orders.>", "products.>", False),
    ],
)
def test_filters_with_a_common_subject_overlap(one: str, other: str, expected: bool) -> None:  # noqa: FBT001 - a parameter
    assert overlap(one, other) is expected
    assert overlap(other, one) is expected


@pytest.mark.parametrize(
    ("triggers", "part"),
    [
        ({"subjects": ["orders.>", "orders.new"]}, "in common"),
        ({"subjects": [">"]}, "first token"),
        ({"subjects": ["$SYS.>"]}, "first token"),
        ({"subjects": ["_R_.>"]}, "first token"),
        ({"subjects": ["answers.>"]}, "of Tocsin"),
        ({"streams": {"SHOP": ["answers.shop"]}}, "of Tocsin"),
        ({"subjects": ["tocsin.0.ledger.>"]}, "of Tocsin"),
        ({"subjects": ["cron.triggered.>"]}, "of Tocsin"),
        ({"subjects": ["mq.>"]}, "of Tocsin"),
        ({"subjects": ["orders.>"], "senders": {"shop": ["orders.>"]}}, "`programs`"),
        ({"subjects": ["orders.*"], "senders": {"public": ["orders.>"]}}, "`subjects`"),
        ({"senders": {"public": ["orders.>"]}}, "`subjects`"),
        ({"subjects": ["orders.>"], "max_age": "1m"}, "120"),
    ],
)
def test_wrong_capture_is_refused_with_its_reason(triggers: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Settings.model_validate({"triggers": triggers, "nats": {"inbox_prefix": "answers.tocsin"}})


def test_captured_stream_has_the_root_of_the_installation() -> None:
    settings = Settings.model_validate({"root": "night-shift", "triggers": {"subjects": ["orders.>"]}})
    assert settings.opened_streams == {"NIGHT_SHIFT_EVENTS": ("orders.>",)}


def test_names_in_variables_keep_their_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_TRIGGERS__STREAMS__ORDERS", '["shop.>"]')
    monkeypatch.setenv("TOCSIN_TRIGGERS__STREAMS__sensors", '["sensor.>"]')
    monkeypatch.setenv("TOCSIN_TRIGGERS__KV__Flags", '["checkout.>"]')
    monkeypatch.setenv("TOCSIN_TRIGGERS__WEBHOOKS__GITHUB_SECRET", '["/hooks/github"]')
    monkeypatch.setenv("TOCSIN_TRIGGERS__MAX_HOPS", "3")
    triggers = load().triggers
    assert triggers.streams == {"ORDERS": ("shop.>",), "sensors": ("sensor.>",)}
    assert triggers.kv == {"Flags": ("checkout.>",)}
    assert triggers.webhooks == {"GITHUB_SECRET": ("/hooks/github",)}
    assert triggers.max_hops == 3


def test_wrong_variable_is_named_with_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_TRIGGERS__STREAMS__ORDERS", '[">"]')
    with pytest.raises(SettingsError, match="TOCSIN_TRIGGERS__STREAMS__ORDERS"):
        load()
