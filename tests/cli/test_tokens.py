"""`tocsin tokens`: create, list and revoke."""

from tests.cli.conftest import World
from tocsin.adapters.http.auth.tokens import PREFIX
from tocsin.domain.access import Role
from tocsin.subjects import Bucket


def test_token_is_shown_once_and_stored_as_hash(world: World) -> None:
    created = world.call(
        "-o", "json", "tokens", "create", "ci", "--role", "scheduler-operator", "--expires", "90d"
    ).json
    assert created["token"].startswith(f"{PREFIX}{created['id']}_")
    assert created["roles"] == ["scheduler-operator"]
    assert created["expires_at"] == "2026-04-01T00:00:00Z"
    [listed] = world.call("-o", "json", "tokens", "list").json
    assert "token" not in listed
    assert listed["created_by"]["source"] == "cli"
    stored = world.do(world.projections.entries(Bucket.TOKENS))[created["id"]].decode()
    assert created["token"].removeprefix(f"{PREFIX}{created['id']}_") not in stored


def test_people_learn_that_the_token_is_shown_once(world: World) -> None:
    output = world.call("tokens", "create", "ci", "--role", "scheduler-viewer").out
    assert output.startswith(PREFIX)
    assert "It is not shown again." in output
    assert "never" in world.call("tokens", "list").out


def test_a_revoked_token_is_gone(world: World) -> None:
    created = world.call("-o", "json", "tokens", "create", "ci", "--role", "scheduler-admin").json
    assert world.call("tokens", "revoke", created["id"]).out == f"revoked {created['id']}\n"
    assert "no tokens: " in world.call("tokens", "list").out


def test_invalid_token_arguments_have_codes(world: World) -> None:
    missing = world.call("tokens", "revoke", "*", "-o", "json")
    assert (missing.code, missing.error["error_code"]) == (3, "token-not-found")
    assert "'*'" in missing.error["message"]
    for lifetime, code in (
        ("soon", "invalid-duration"),
        ("90", "duration-without-unit"),
        ("0s", "duration-out-of-range"),
    ):
        invalid = world.call("tokens", "create", "ci", "--role", "scheduler-admin", "--expires", lifetime, "-o", "json")
        assert (invalid.code, invalid.error["error_code"]) == (2, code)
        assert "--expires" in invalid.error["message"]
        assert lifetime in invalid.error["message"]
    role = world.call("tokens", "create", "ci", "--role", "root")
    assert role.code == 2
    assert "scheduler-admin" in role.err


def test_help_lists_every_role(world: World) -> None:
    result = world.call("tokens", "create", "--help")
    assert [role.value for role in Role if role.value not in result.out] == []


def test_worker_token_names_its_queues_and_functions(world: World) -> None:
    create = ("tokens", "create", "mailer", "--role", "scheduler-worker")
    created = world.call("-o", "json", *create, "--queue", "mail", "--queue", "pdf", "--function", "mail/*").json
    assert (created["queues"], created["functions"]) == (["mail", "pdf"], ["mail/*"])
    [listed] = world.call("-o", "json", "tokens", "list").json
    assert (listed["queues"], listed["functions"]) == (["mail", "pdf"], ["mail/*"])
    assert world.call("-o", "json", *create, "--queue", "mail").json["functions"] == ["*"]


def test_worker_token_without_a_usable_queue_is_refused(world: World) -> None:
    wrong = {
        ("--role", "scheduler-worker"): "role-not-bound",
        ("--role", "scheduler-worker", "--function", "f"): "role-not-bound",
        ("--role", "scheduler-operator", "--queue", "mail"): "role-not-bound",
        ("--role", "scheduler-operator", "--function", "mail"): "role-not-bound",
        ("--role", "scheduler-worker", "--queue", "Mail!"): "invalid-queue",
        ("--role", "scheduler-worker", "--queue", ""): "invalid-queue",
        ("--role", "scheduler-worker", "--queue", "mail", "--function", ""): "invalid-function",
    }
    for options, code in wrong.items():
        refused = world.call("tokens", "create", "mailer", *options, "-o", "json")
        assert (refused.code, refused.error["error_code"]) == (2, code), options
    assert world.call("-o", "json", "tokens", "list").json == []
