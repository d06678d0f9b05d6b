"""Credentials and TLS: the settings as what a client of NATS proves itself with.

Every file is read once at the start, so that a wrong file is reported with the name of its field. The client reads all files
again at each reconnection, so a replaced file takes effect then.
"""

import base64
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import nkeys  # type: ignore[import-untyped]
from pydantic import SecretStr

from ....settings import Nats
from ...pem_files import load_authorities, load_pair, read_file, wrong
from .connection import Json

_USER_SEED: Final = b"SU"
_JWT: Final = b"BEGIN NATS USER JWT"
_SEED: Final = b"BEGIN USER NKEY SEED"
_KINDS: Final = ("user", "token", "nkey_seed", "creds")
_FILE: Final = re.compile(r"\$\{file:(/[^{}]+)\}")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials and TLS of the settings. A file that cannot be used is a `SettingsError`.

    `context` and `identity` read the files again.
    """

    nats: Nats

    @property
    def is_encrypted(self) -> bool:
        """Reject a server that does not speak TLS."""
        return self.nats.tls.is_required or all(url.strip().startswith("tls://") for url in self.nats.url.split(","))

    @property
    def client(self) -> Json:
        """Options of `nats.connect`."""
        return {
            "tls_hostname": self.nats.tls.server_name,
            "tls_handshake_first": self.nats.tls.handshake_first,
            "inbox_prefix": self.nats.inbox_prefix,
        }

    def context(self) -> ssl.SSLContext:
        """Return the TLS context; servers are always verified."""
        tls = self.nats.tls
        context = ssl.create_default_context()
        if tls.ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            load_authorities(context, "nats.tls.ca", tls.ca)
        load_pair(context, "nats.tls", tls.cert, tls.key)
        return context

    def identity(self, nonce: str) -> Mapping[str, str]:
        """Return the credentials as fields of the message CONNECT, with the server's nonce signed."""
        nats = self.nats
        if nats.user is not None and nats.password is not None:
            return {"user": nats.user, "pass": _secret("nats.password", nats.password)}
        if nats.token is not None:
            return {"auth_token": _secret("nats.token", nats.token)}
        if nats.nkey_seed is not None:
            seed = read_file("nats.nkey_seed", nats.nkey_seed).strip()
            public, signature = _signed("nats.nkey_seed", nats.nkey_seed, seed, nonce)
            return {"nkey": public, "sig": signature}
        if nats.creds is not None:
            jwt, seed = _blocks(nats.creds)
            return {"jwt": jwt, "sig": _signed("nats.creds", nats.creds, seed, nonce)[1]}
        return {}


def security_of(nats: Nats) -> Credentials:
    """Check the credentials and certificates that the settings name, and return them."""
    kinds = [kind for kind in _KINDS if getattr(nats, kind) is not None]
    with_user = [url for url in nats.url.split(",") if urlsplit(url.strip()).username]
    if len(kinds) > 1 or (kinds and with_user):
        both = [*(f"`{kind}`" for kind in kinds), *(["a user in `url`"] if with_user else [])]
        wrong("nats", f"{' and '.join(both)} are set. Set one kind of credentials, or none", code="exclusive-fields")
    if (nats.user is None) != (nats.password is None):
        missing, present = ("user", "password") if nats.user is None else ("password", "user")
        wrong(f"nats.{missing}", f"`{present}` is set without a `{missing}`. Set both, or neither", code="required")
    credentials = Credentials(nats)
    if nats.tls.is_required:  # a context takes as long as a short command
        credentials.context()
    credentials.identity("")
    return credentials


def _secret(field: str, value: SecretStr) -> str:
    """Return a secret, read from its file if the value is `${file:/PATH}`."""
    text = value.get_secret_value()
    if (reference := _FILE.fullmatch(text)) is None:
        return text
    path = Path(reference[1])
    try:
        secret = read_file(field, path).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        wrong(field, "it is not text in UTF-8", path, code="file-unreadable")
    if not secret:
        wrong(field, "the file is empty", path, code="required")
    return secret


def _blocks(path: Path) -> tuple[str, bytes]:
    """Return the JWT and the seed of a .creds file."""
    lines = read_file("nats.creds", path).splitlines()
    blocks = {
        mark: next((lines[i + 1].strip() for i, line in enumerate(lines[:-1]) if mark in line), b"")
        for mark in (_JWT, _SEED)
    }
    for mark, block in blocks.items():
        if not block:
            reason = f"it has no block `{mark.decode()}`; use the file that `nsc generate creds` writes"
            wrong("nats.creds", reason, path, code="jwt-missing" if mark == _JWT else "nkey-seed-missing")
    return blocks[_JWT].decode("ascii", "replace"), blocks[_SEED]


def _signed(field: str, path: Path, seed: bytes, nonce: str) -> tuple[str, str]:
    """Return the public key of a user's seed, and its signature of a nonce."""
    if b"\n" in seed or not seed.startswith(_USER_SEED):
        wrong(
            field,
            "it contains no seed of a user's nkey, which is one line that begins with `SU`",
            path,
            code="nkey-seed-missing",
        )
    try:
        pair = nkeys.from_seed(bytearray(seed))
        public, signature = pair.public_key.decode(), base64.b64encode(pair.sign(nonce.encode())).decode()
        pair.wipe()
    except Exception:  # noqa: BLE001 - the library passes any error of base32 and of its checksum
        wrong(field, "its seed is damaged: the checksum is wrong", path, code="nkey-seed-damaged")
    return public, signature
