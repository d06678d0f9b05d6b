"""Every kind of credentials, over every client of the project, on servers that ask for them."""

from pathlib import Path

import pytest

from tests.security.given import Nats, refusal, works
from tests.security.keys import key, operator
from tests.security.server import Server, server
from tocsin import bootstrap
from tocsin.ports import NotAllowed
from tocsin.settings import Settings


async def test_user_and_password(tmp_path: Path) -> None:
    with server(tmp_path / "s", 'authorization { user: tocsin, password: "s3cret" }') as s:
        await works(s.url, tmp_path, {"user": "tocsin", "password": "s3cret"})
        reason = await refusal(s.url, tmp_path, {"user": "tocsin", "password": "wr0ng"})
        assert reason.startswith(f"{s.url}: the server refuses these credentials (Authorization Violation): check")
        assert "wr0ng" not in reason
        assert "Authorization Violation" in await refusal(s.url, tmp_path, {})


async def test_password_in_a_url_is_hidden(tmp_path: Path) -> None:
    with server(tmp_path / "s", 'authorization { user: tocsin, password: "s3cret" }') as s:
        reason = await refusal(f"nats://tocsin:wr0ng@127.0.0.1:{s.port}", tmp_path, {})
        assert reason.startswith(f"nats://tocsin:******@127.0.0.1:{s.port}: ")


async def test_token(tmp_path: Path) -> None:
    with server(tmp_path / "s", 'authorization { token: "s3cret" }') as s:
        await works(s.url, tmp_path, {"token": "s3cret"})
        assert "Authorization Violation" in await refusal(s.url, tmp_path, {"token": "wr0ng"})


async def test_nkey(tmp_path: Path) -> None:
    known, unknown = key(), key()
    (tmp_path / "known.nk").write_text(f"{known.seed}\n")
    (tmp_path / "unknown.nk").write_text(unknown.seed)
    with server(tmp_path / "s", f"authorization {{ users: [ {{ nkey: {known.public} }} ] }}") as s:
        await works(s.url, tmp_path, {"nkey_seed": tmp_path / "known.nk"})
        assert "Authorization Violation" in await refusal(s.url, tmp_path, {"nkey_seed": tmp_path / "unknown.nk"})


async def test_creds(tmp_path: Path) -> None:
    ours, theirs = operator(), operator()
    (tmp_path / "ours.creds").write_text(ours.creds())
    (tmp_path / "theirs.creds").write_text(theirs.creds())
    (tmp_path / "old.creds").write_text(ours.creds(exp=1))
    with server(tmp_path / "s", ours.config) as s:
        await works(s.url, tmp_path, {"creds": tmp_path / "ours.creds"})
        assert "Authorization Violation" in await refusal(s.url, tmp_path, {"creds": tmp_path / "theirs.creds"})
        assert "Authorization Violation" in await refusal(s.url, tmp_path, {"creds": tmp_path / "old.creds"})


@pytest.mark.parametrize(
    ("field", "content", "reason"),
    [
        ("nkey_seed", None, "no such file"),
        ("creds", None, "no such file"),
        ("tls.ca", None, "no such file"),
        ("nkey_seed", "UAXXX", "it contains no seed of a user's nkey, which is one line that begins with `SU`"),
        ("nkey_seed", "SUAAAAAAAA", "its seed is damaged: the checksum is wrong"),
        ("creds", "nothing", "it has no block `BEGIN NATS USER JWT`; use the file that `nsc generate"),
        ("creds", "---BEGIN NATS USER JWT---\nx\n", "it has no block `BEGIN USER NKEY SEED`"),
        (
            "creds",
            "---BEGIN NATS USER JWT---\nx\n---BEGIN USER NKEY SEED---\nSAA\n",
            "it contains no seed of a user's nkey",
        ),
        ("tls.ca", "nothing", "it contains no certificate in PEM format"),
    ],
)
async def test_unusable_file_is_reported_by_its_field(
    field: str, content: str | None, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    section, _, name = field.rpartition(".")
    nats = {section: {name: path}} if section else {name: path}
    problem = await refusal("nats://127.0.0.1:9", tmp_path, nats)
    assert f"nats.{field}" in problem
    assert str(path) in problem
    assert reason in problem


@pytest.mark.parametrize(
    ("nats", "expected"),
    [
        ({"user": "u", "password": "p", "token": "t"}, "`user` and `token` are set. Set one kind of credentials"),
        ({"user": "u"}, "`nats.password`: `user` is set without a `password`"),
        ({"password": "p"}, "`nats.user`: `password` is set without a `user`"),
        ({"tls": {"key": "k"}}, "`nats.tls.cert`: `key` is set without a `cert`"),
    ],
)
async def test_settings_that_contradict_each_other(nats: Nats, expected: str, tmp_path: Path) -> None:
    assert expected in await refusal("nats://127.0.0.1:9", tmp_path, nats)


async def test_url_and_field_cannot_both_name_a_user(tmp_path: Path) -> None:
    reason = await refusal("nats://me:secret@127.0.0.1:9", tmp_path, {"token": "t"})
    assert "`token` and a user in `url` are set" in reason


async def test_forbidden_publish_is_reported_immediately(tmp_path: Path) -> None:
    config = 'authorization { users: [ { user: u, password: p, permissions: { publish: "nothing" } } ] }'
    with server(tmp_path / "s", config) as s:
        settings = _as_user(s, tmp_path)
        async with bootstrap.connect(settings) as installation:
            with pytest.raises(NotAllowed, match=r"\$JS\.API\.INFO: this NATS user may not publish there"):
                await bootstrap.initialize(installation)


async def test_foreign_inbox_is_reported_immediately(tmp_path: Path) -> None:
    config = 'authorization { users: [ { user: u, password: p, permissions: { subscribe: "_mine.>" } } ] }'
    with server(tmp_path / "s", config) as s:
        settings = _as_user(s, tmp_path)
        async with bootstrap.connect(settings) as installation:
            with pytest.raises(NotAllowed, match=r"may not subscribe to _INBOX.*set `nats.inbox_prefix`"):
                await bootstrap.initialize(installation)


def _as_user(s: Server, folder: Path) -> Settings:
    return Settings.model_validate({"data_dir": folder, "nats": {"url": s.url, "user": "u", "password": "p"}})
