"""`/v1/definition-settings`: the names that definitions may refer to, without secrets."""

from pathlib import Path

from pydantic import TypeAdapter

from tests.history_files import history_url
from tests.http.conftest import World
from tocsin.adapters.sql.history import open_history
from tocsin.domain.definition import JobDefinition
from tocsin.services.definition_settings import DefinitionSettings
from tocsin.settings import Settings

SETTINGS = Settings.model_validate(
    {
        "triggers": {
            "streams": {"ORDERS": ["orders.>"]},
            "kv": {"flags": ["checkout.>"]},
            "objects": ["uploads"],
            "webhooks": {"GITHUB_SECRET": ["/hooks/github"], "file:/run/secrets/shop": ["/hooks/shop/*"]},
        }
    }
)


async def test_answer_has_no_names_of_secrets(tmp_path: Path) -> None:
    async with open_history(history_url(tmp_path)) as history:
        answer = await World(tmp_path, history, settings=SETTINGS).ask("GET", "/v1/definition-settings")
    assert answer.json() == {
        "channels": [],
        "streams": {"ORDERS": ["orders.>"]},
        "buckets": {"KV_flags": ["$KV.flags.checkout.>"], "OBJ_uploads": ["$O.uploads.M.>"]},
        "webhooks": [{"paths": ["/hooks/github"], "secret": None}, {"paths": ["/hooks/shop/*"], "secret": None}],
        "absent": [],
        "work_queues": [],
    }


async def test_warnings_name_streams_that_do_not_exist(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "triggers": {
                "streams": {"ORDERS": ["orders.>"], "ABSENT": ["clicks.>"], "WORK": ["tasks.>"]},
                "kv": {"flags": [">"]},
            }
        }
    )
    async with open_history(history_url(tmp_path)) as history:
        answer = await World(tmp_path, history, settings=settings).ask("GET", "/v1/definition-settings")
    known = TypeAdapter(DefinitionSettings).validate_json(answer.content)
    triggers = [{"nats": "orders.paid"}, {"nats": "clicks.new"}, {"nats": "tasks.new"}, {"kv": "flags/a"}]
    [absent, work_queue] = known.warnings(
        [JobDefinition.model_validate({"name": "a", "function": "f", "triggers": triggers})]
    )
    assert absent.startswith("the stream `ABSENT` of `clicks.new` does not exist (job a)")
    assert work_queue.startswith("the stream `WORK` of `tasks.new` is a work queue")


def test_secret_of_a_webhook_is_checked_where_known() -> None:
    def job(path: str, secret: str | None = None) -> JobDefinition:
        trigger = {"webhook": path} | ({} if secret is None else {"secret": secret})
        return JobDefinition.model_validate({"name": "build", "function": "f", "triggers": [trigger]})

    known = DefinitionSettings.of(SETTINGS)
    hidden = known.shown_to(lambda _: True)
    for path, secret, warned in (
        ("/hooks/github", None, (False, False)),
        ("/hooks/shop/paid", "${file:/run/secrets/shop}", (False, False)),
        ("/hooks/github", "${env:OTHER}", (True, False)),
        ("/hooks/other", None, (True, True)),
        ("/hooks/other", "${env:GITHUB_SECRET}", (True, True)),
    ):
        found = [[*each.warnings([job(path, secret)])] for each in (known, hidden)]
        assert (bool(found[0]), bool(found[1])) == warned, (path, secret)
