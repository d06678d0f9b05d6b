"""`tocsin tokens`: made, shown once, listed without what makes them work, revoked."""

from tests.cli.conftest import World
from tocsin.adapters.http.auth.tokens import PREFIX
from tocsin.subjects import Bucket


def test_token_is_shown_once_and_stored_as_hash(world: World) -> None:
    made = world.call("-o", "json", "tokens", "create", "ci", "--role", "scheduler-operator", "--expires", "90d").json
    assert made["token"].startswith(f"{PREFIX}{made['id']}_")
    assert made["roles"] == ["scheduler-operator"]
    assert made["expires_at"] == "2026-04-01T00:00:00Z"
    [listed] = world.call("-o", "json", "tokens", "list").json
    assert "token" not in listed
    assert listed["created_by"]["source"] == "cli"
    kept = world.do(world.projections.entries(Bucket.TOKENS))[made["id"]].decode()
    assert made["token"].removeprefix(f"{PREFIX}{made['id']}_") not in kept


def test_people_learn_that_the_token_is_shown_once(world: World) -> None:
    told = world.call("tokens", "create", "ci", "--role", "scheduler-viewer").out
    assert told.startswith(PREFIX)
    assert "It is not shown again." in told
    assert "never" in world.call("tokens", "list").out


def test_a_revoked_token_is_gone(world: World) -> None:
    made = world.call("-o", "json", "tokens", "create", "ci", "--role", "scheduler-admin").json
    assert world.call("tokens", "revoke", made["id"]).out == f"revoked {made['id']}\n"
    assert "no tokens: the API asks nobody" in world.call("tokens", "list").out


def test_what_cannot_be_is_refused_in_words(world: World) -> None:
    missing = world.call("tokens", "revoke", "*")
    assert missing.code == 3
    assert missing.err == "error: no token has the id '*'; `tocsin tokens list` shows those that are\n"
    never = world.call("tokens", "create", "ci", "--role", "scheduler-admin", "--expires", "soon")
    assert (never.code, never.err.startswith("error: --expires: ")) == (2, True)
    over = world.call("tokens", "create", "ci", "--role", "scheduler-admin", "--expires", "0s")
    assert "must be more than 0 seconds" in over.err
    role = world.call("tokens", "create", "ci", "--role", "root")
    assert role.code == 2
    assert "scheduler-admin" in role.err
