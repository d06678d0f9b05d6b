"""Every kind of credentials, over every client of the project, on servers that ask for them."""

from pathlib import Path

import pytest

from tests.security.given import Nats, refusal, settings_problem, works
from tests.security.keys import key, operator
from tests.security.server import Server, server
from tocsin import bootstrap
from tocsin.ports import NotAllowed
from tocsin.settings import Settings

REJECTED = "nats-credentials-rejected"


async def test_user_and_password(tmp_path: Path) -> None:
    with server(tmp_path / "s", 'authorization { user: tocsin, password: "s3cret" }') as s:
        await works(s.url, tmp_path, {"user": "tocsin", "password": "s3cret"})
        error = await refusal(s.url, tmp_path, {"user": "tocsin", "password": "wr0ng"})
        assert error.code == REJECTED
        assert str(error).startswith(f"{s.url}: ")
        assert "wr0ng" not in str(error)
        assert (await refusal(s.url, tmp_path, {})).code == REJECTED


async def test_password_in_a_url_is_hidden(tmp_path: Path) -> None:
    with server(tmp_path / "s", 'authorization { user: tocsin, password: "s3cret" }') as s:
        error = await refusal(f"nats://tocsin:wr0ng@127.0.0.1:{s.port}", tmp_path, {})
        assert str(error).startswith(f"nats://tocsin:******@127.0.0.1:{s.port}: ")


async def test_token(tmp_path: Path) -> None:
    with server(tmp_path / "s", 'authorization { token: "s3cret" }') as s:
        await works(s.url, tmp_path, {"token": "s3cret"})
        assert (await refusal(s.url, tmp_path, {"token": "wr0ng"})).code == REJECTED


async def test_nkey(tmp_path: Path) -> None:
    known, unknown = key(), key()
    (tmp_path / "known.nk").write_text(f"{known.seed}\n")
    (tmp_path / "unknown.nk").write_text(unknown.seed)
    with server(tmp_path / "s", f"authorization {{ users: [ {{ nkey: {known.public} }} ] }}") as s:
        await works(s.url, tmp_path, {"nkey_seed": tmp_path / "known.nk"})
        assert (await refusal(s.url, tmp_path, {"nkey_seed": tmp_path / "unknown.nk"})).code == REJECTED


async def test_creds(tmp_path: Path) -> None:
    ours, theirs = operator(), operator()
    (tmp_path / "ours.creds").write_text(ours.creds())
    (tmp_path / "theirs.creds").write_text(theirs.creds())
    (tmp_path / "old.creds").write_text(ours.creds(exp=1))
    with server(tmp_path / "s", ours.config) as s:
        await works(s.url, tmp_path, {"creds": tmp_path / "ours.creds"})
        assert (await refusal(s.url, tmp_path, {"creds": tmp_path / "theirs.creds"})).code == REJECTED
        assert (await refusal(s.url, tmp_path, {"creds": tmp_path / "old.creds"})).code == REJECTED


@pytest.mark.parametrize(
    ("field", "content", "code"),
    [
        ("nkey_seed", None, "file-not-found"),
        ("creds", None, "file-not-found"),
        ("tls.ca", None, "file-not-found"),
        ("nkey_seed", "UAXXX", "nkey-seed-missing"),
        ("nkey_seed", "SUAAAAAAAA", "nkey-seed-damaged"),
        ("creds", "nothing", "jwt-missing"),
        ("creds", "---BEGIN NATS USER JWT---\nx\n", "nkey-seed-missing"),
        ("creds", "---BEGIN NATS USER JWT---\nx\n---BEGIN USER NKEY SEED---\nSAA\n", "nkey-seed-missing"),
        ("tls.ca", "nothing", "certificate-missing"),
    ],
)
async def test_unusable_file_is_reported_by_its_field(
    field: str, content: str | None, code: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    section, _, name = field.rpartition(".")
    nats = {section: {name: path}} if section else {name: path}
    problem = await settings_problem("nats://127.0.0.1:9", tmp_path, nats)
    assert (problem.field, problem.value, problem.code) == (f"nats.{field}", str(path), code)


@pytest.mark.parametrize(
    ("nats", "field", "code", "names"),
    [
        ({"user": "u", "password": "p", "token": "t"}, "nats", "exclusive-fields", ("`user`", "`token`")),
        ({"user": "u"}, "nats.password", "required", ("`user`",)),
        ({"password": "p"}, "nats.user", "required", ("`password`",)),
        ({"tls": {"key": "k"}}, "nats.tls.cert", "required", ("`key`",)),
    ],
)
async def test_contradictory_settings_are_reported(
    nats: Nats, field: str, code: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    problem = await settings_problem("nats://127.0.0.1:9", tmp_path, nats)
    assert (problem.field, problem.code) == (field, code)
    assert all(name in problem.reason for name in names)


async def test_url_and_field_cannot_both_name_a_user(tmp_path: Path) -> None:
    problem = await settings_problem("nats://me:secret@127.0.0.1:9", tmp_path, {"token": "t"})
    assert (problem.field, problem.code) == ("nats", "exclusive-fields")
    assert all(name in problem.reason for name in ("`token`", "`url`"))


async def test_forbidden_publish_is_reported_immediately(tmp_path: Path) -> None:
    config = 'authorization { users: [ { user: u, password: p, permissions: { publish: "nothing" } } ] }'
    with server(tmp_path / "s", config) as s:
        settings = _as_user(s, tmp_path)
        async with bootstrap.connect(settings) as installation:
            with pytest.raises(NotAllowed) as caught:
                await bootstrap.initialize(installation)
        assert (caught.value.code, caught.value.subject) == ("not-permitted", "$JS.API.INFO")


async def test_foreign_inbox_is_reported_immediately(tmp_path: Path) -> None:
    config = 'authorization { users: [ { user: u, password: p, permissions: { subscribe: "_mine.>" } } ] }'
    with server(tmp_path / "s", config) as s:
        settings = _as_user(s, tmp_path)
        async with bootstrap.connect(settings) as installation:
            with pytest.raises(NotAllowed) as caught:
                await bootstrap.initialize(installation)
        assert (caught.value.code, caught.value.remedy) == ("not-permitted", "nats.inbox_prefix")
        assert caught.value.subject.startswith("_INBOX.")


def _as_user(s: Server, folder: Path) -> Settings:
    return Settings.model_validate({"data_dir": folder, "nats": {"url": s.url, "user": "u", "password": "p"}})
