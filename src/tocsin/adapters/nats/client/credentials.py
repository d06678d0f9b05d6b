"""Credentials and TLS: the settings as options of the client and of FastStream's broker.

Every file is read here once, so that a wrong file is reported at the start with the name of its field. The clients read
the files again at each reconnection, so a replaced file takes effect then.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import nkeys  # type: ignore[import-untyped]

from ....settings import Nats, Tls
from ...pem_files import load_authorities, load_pair, read_file, wrong
from .connection import Json

__all__ = ["Credentials", "security_of"]

_USER_SEED: Final = b"SU"
_JWT: Final = b"BEGIN NATS USER JWT"
_SEED: Final = b"BEGIN USER NKEY SEED"
_CLIENT_OPTIONS: Final = {
    "user": ("user", "password"),
    "token": ("token",),
    "nkey_seed": ("nkeys_seed",),
    "creds": ("user_credentials",),
}
"""The options of `nats.connect` for each kind of credentials."""
_TLS_OPTIONS: Final = ("tls_hostname", "tls_handshake_first")


@dataclass(frozen=True, slots=True)
class Credentials:
    """One kind of credentials, or none, and TLS."""

    kind: str | None
    values: tuple[str, ...] = field(repr=False)
    """User and password, a token, or the path of a file."""
    tls: Json
    inbox_prefix: str
    is_encrypted: bool
    """Reject a server that does not speak TLS."""

    @property
    def client(self) -> Json:
        """Options of `nats.connect`."""
        names = _CLIENT_OPTIONS[self.kind] if self.kind else ()
        return {**dict(zip(names, self.values, strict=True)), **self.tls, "inbox_prefix": self.inbox_prefix}

    @property
    def broker(self) -> Json:
        """Arguments of FastStream's broker."""
        from faststream.nats import security  # noqa: PLC0415 - a worker connects without FastStream

        makers: dict[str | None, Callable[..., security.NatsSecurity]] = {
            None: security.NatsSecurity,
            "user": security.NatsUserPassword,
            "token": security.NatsToken,
            "nkey_seed": security.NatsNKey.from_file,
            "creds": security.NatsCredentials.from_file,
        }
        options = {"ssl_context": self.tls["tls"], **{name: self.tls[name] for name in _TLS_OPTIONS}}
        return {"inbox_prefix": self.inbox_prefix, "security": makers[self.kind](*self.values, **options)}


def security_of(nats: Nats) -> Credentials:
    """Read the credentials and certificates that the settings name.

    Raises:
        SettingsError: a file is missing or invalid, or the settings contradict each other.
    """
    kinds = [kind for kind in _CLIENT_OPTIONS if getattr(nats, kind) is not None]
    with_user = [url for url in nats.url.split(",") if urlsplit(url.strip()).username]
    if len(kinds) > 1 or (kinds and with_user):
        both = [*(f"`{kind}`" for kind in kinds), *(["a user in `url`"] if with_user else [])]
        wrong("nats", f"{' and '.join(both)} are set. Set one kind of credentials, or none", code="exclusive-fields")
    if (nats.user is None) != (nats.password is None):
        missing, present = ("user", "password") if nats.user is None else ("password", "user")
        wrong(f"nats.{missing}", f"`{present}` is set without a `{missing}`. Set both, or neither", code="required")
    tls: Json = {
        "tls": _context(nats.tls) if nats.tls.is_required else None,
        "tls_hostname": nats.tls.server_name,
        "tls_handshake_first": nats.tls.handshake_first,
    }
    return Credentials(
        kind=kinds[0] if kinds else None,
        values=_values(nats),
        tls=tls,
        inbox_prefix=nats.inbox_prefix,
        is_encrypted=nats.tls.is_required or all(url.strip().startswith("tls://") for url in nats.url.split(",")),
    )


def _values(nats: Nats) -> tuple[str, ...]:
    if nats.user is not None and nats.password is not None:
        return nats.user, nats.password.get_secret_value()
    if nats.token is not None:
        return (nats.token.get_secret_value(),)
    if nats.nkey_seed is not None:
        _check_seed("nats.nkey_seed", nats.nkey_seed, read_file("nats.nkey_seed", nats.nkey_seed).strip())
        return (str(nats.nkey_seed),)
    if nats.creds is not None:
        _check_creds(nats.creds)
        return (str(nats.creds),)
    return ()


def _check_creds(path: Path) -> None:
    lines = read_file("nats.creds", path).splitlines()
    blocks = {
        mark: next((lines[i + 1].strip() for i, line in enumerate(lines[:-1]) if mark in line), b"")
        for mark in (_JWT, _SEED)
    }
    for mark, block in blocks.items():
        if not block:
            reason = f"it has no block `{mark.decode()}`; use the file that `nsc generate creds` writes"
            wrong("nats.creds", reason, path, code="jwt-missing" if mark == _JWT else "nkey-seed-missing")
    _check_seed("nats.creds", path, blocks[_SEED])


def _check_seed(field: str, path: Path, seed: bytes) -> None:
    if b"\n" in seed or not seed.startswith(_USER_SEED):
        wrong(
            field,
            "it contains no seed of a user's nkey, which is one line that begins with `SU`",
            path,
            code="nkey-seed-missing",
        )
    try:
        nkeys.from_seed(bytearray(seed)).wipe()
    except Exception:  # noqa: BLE001 - the library passes any error of base32 and of its checksum
        wrong(field, "its seed is damaged: the checksum is wrong", path, code="nkey-seed-damaged")


def _context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context; servers are always verified."""
    context = ssl.create_default_context()
    if tls.ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_authorities(context, "nats.tls.ca", tls.ca)
    load_pair(context, "nats.tls", tls.cert, tls.key)
    return context
