"""The pages about triggers: their jobs are registered, and their events do what they say."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import yaml

from tocsin.domain import formats
from tocsin.services.definition_settings import DefinitionSettings
from tocsin.services.trigger_test import GivenEvent, try_event
from tocsin.settings import Settings
from tocsin.settings.triggers import stream_of

PAGES = Path(__file__).parents[2] / "docs/how-to"
NOW = datetime(2026, 11, 26, tzinfo=UTC)


def block(title: str, page: str = "event-triggers.md") -> str:
    text = (PAGES / page).read_text()
    [found] = re.findall(rf'```\w+ title="{re.escape(title)}"\n(.*?)```', text, re.DOTALL)
    return str(found)


def test_event_of_the_page_starts_its_job() -> None:
    invoice, report = formats.read(yaml.safe_load(block("jobs.yaml")))
    [answer] = try_event(invoice, GivenEvent.model_validate_json(block("event.json")), NOW)
    assert (answer.outcome, answer.key, answer.input) == ("starts", "A-17", {"order": "A-17", "customer": "Ada"})
    end = GivenEvent(subject="invoice.completed", body={"result": {"number": 7}})
    assert [answer.outcome for answer in try_event(report, end, NOW)] == ["starts", "other_source"]
    assert [trigger.on for trigger in report.triggers] == ["completed", "finished"]


def test_settings_of_the_page_open_its_subject() -> None:
    settings = Settings.model_validate(yaml.safe_load(block("tocsin.yaml")))
    invoice, _ = formats.read(yaml.safe_load(block("jobs.yaml")))
    assert stream_of(invoice.triggers[0], settings.opened_streams) == "ORDERS"
    assert json.loads(block("event.json"))["subject"] == "orders.eu.paid"


def test_captured_subjects_of_the_page_open_its_job() -> None:
    settings = Settings.model_validate(yaml.safe_load(block("captured.yaml")))
    invoice, _ = formats.read(yaml.safe_load(block("jobs.yaml")))
    assert stream_of(invoice.triggers[0], settings.opened_streams) == "TOCSIN_EVENTS"
    assert not [*DefinitionSettings.of(settings).warnings([invoice])]


def test_buckets_of_the_page_are_opened() -> None:
    settings = Settings.model_validate(yaml.safe_load(block("buckets.yaml")))
    import_, reload = formats.read(yaml.safe_load(block("bucket-jobs.yaml")))
    assert not [*DefinitionSettings.of(settings).warnings([import_, reload])]
    [answer] = try_event(import_, GivenEvent.model_validate_json(block("upload.json")), NOW)
    assert (answer.outcome, answer.input) == ("starts", {"name": "invoices/a.pdf", "digest": "SHA-256=…"})
    changed = GivenEvent(subject="flags/checkout.new", body="on", revision=4)
    [answer] = try_event(reload, changed, NOW)
    assert answer.input == {"flag": "checkout.new", "value": "on", "revision": 4}


def test_webhooks_of_the_page_are_opened() -> None:
    page = "webhooks.md"
    settings = Settings.model_validate(yaml.safe_load(block("tocsin.yaml", page)))
    build, ship = formats.read(yaml.safe_load(block("jobs.yaml", page)))
    assert not [*DefinitionSettings.of(settings).warnings([build, ship])]
    [answer] = try_event(build, GivenEvent.model_validate_json(block("event.json", page)), NOW)
    assert (answer.outcome, answer.input) == ("starts", {"commit": "4ba2b37e"})
