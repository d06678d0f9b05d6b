"""TLS: both sides prove who they are, and nothing is said in the open."""

from pathlib import Path

import pytest
import trustme

from tests.security.given import refusal, settings_problem, works
from tests.security.server import server


class Authority:
    """One that signs the certificates of servers and clients."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._ca = trustme.CA()
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, name: str) -> tuple[Path, Path]:
        cert, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        made = self._ca.issue_cert(name)
        made.cert_chain_pems[0].write_to_path(str(cert))
        made.private_key_pem.write_to_path(str(key_file))
        return cert, key_file


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def speaks_tls(authority: Authority, name: str = "127.0.0.1", more: str = "") -> str:
    cert, key_file = authority.issue(name)
    return f'tls {{ cert_file: "{cert}", key_file: "{key_file}", {more} }}'


async def test_tls(tmp_path: Path, authority: Authority) -> None:
    with server(tmp_path / "s", speaks_tls(authority)) as s:
        await works(s.url, tmp_path, {"tls": {"ca": authority.file}})
        error = await refusal(s.url, tmp_path, {})
        assert error.code == "nats-tls-failed"
        assert str(error).startswith(f"{s.url}: ")
        assert "`nats.tls.ca`" in str(error)
        other = Authority(tmp_path / "other")
        assert (await refusal(s.url, tmp_path, {"tls": {"ca": other.file}})).code == "nats-tls-failed"


async def test_the_name_in_the_certificate_must_fit(tmp_path: Path, authority: Authority) -> None:
    with server(tmp_path / "s", speaks_tls(authority, "nats.internal")) as s:
        await works(s.url, tmp_path, {"tls": {"ca": authority.file, "server_name": "nats.internal"}})
        error = await refusal(s.url, tmp_path, {"tls": {"ca": authority.file}})
        assert error.code == "nats-tls-failed"
        assert "`nats.tls.server_name`" in str(error)


async def test_handshake_first(tmp_path: Path, authority: Authority) -> None:
    with server(tmp_path / "s", speaks_tls(authority, more="handshake_first: true")) as s:
        await works(s.url, tmp_path, {"tls": {"ca": authority.file, "handshake_first": True}})


async def test_a_client_certificate(tmp_path: Path, authority: Authority) -> None:
    cert, key_file = authority.issue("tocsin")
    with server(tmp_path / "s", speaks_tls(authority, more=f'ca_file: "{authority.file}", verify: true')) as s:
        await works(s.url, tmp_path, {"tls": {"ca": authority.file, "cert": cert, "key": key_file}})
        error = await refusal(s.url, tmp_path, {"tls": {"ca": authority.file}})
        assert error.code == "nats-tls-failed"
        assert all(field in str(error) for field in ("`nats.tls.cert`", "`nats.tls.key`"))


async def test_a_key_that_is_not_the_certificates(tmp_path: Path, authority: Authority) -> None:
    (cert, _), (_, key_file) = authority.issue("a"), authority.issue("b")
    problem = await settings_problem("nats://127.0.0.1:9", tmp_path, {"tls": {"cert": cert, "key": key_file}})
    assert (problem.field, problem.value, problem.code) == ("nats.tls.key", str(key_file), "key-mismatch")
    assert str(cert) in problem.reason


async def test_required_tls_sends_nothing_in_clear_text(tmp_path: Path, authority: Authority) -> None:
    with server(tmp_path / "s", "") as s:
        assert (await refusal(s.url, tmp_path, {"tls": {"ca": authority.file}})).code == "nats-tls-not-offered"
