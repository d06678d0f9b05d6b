"""How a client proves to NATS who it is, and NATS to the client: the settings as options of the libraries that connect.

Everything that lies in a file is read here once, so that a wrong one is told of at the door, by the name of its field. The
clients read credentials again at each reconnection: a file that is replaced is used from then on.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlsplit

import nkeys  # type: ignore[import-untyped]

from ....domain.definition import DefinitionProblem
from ....settings import Nats, SettingsError, Tls
from .connection import Json

if TYPE_CHECKING:
    from faststream.nats.security import NatsSecurity

__all__ = ["Credentials", "security_of"]

_USER_SEED: Final = b"SU"
_JWT: Final = b"BEGIN NATS USER JWT"
_SEED: Final = b"BEGIN USER NKEY SEED"
_KINDS: Final = ("user", "token", "nkey_seed", "creds")


@dataclass(frozen=True, slots=True)
class Credentials:
    """One way to come in, as each library wants to be told it."""

    client: Json
    """Options of `nats.connect`."""
    is_encrypted: bool
    """Nothing may go over the wire in the open."""
    make_broker_options: Callable[[], Json]

    @property
    def broker(self) -> Json:
        """Arguments of FastStream's broker, which only a process that runs stages has installed."""
        return self.make_broker_options()


def security_of(nats: Nats) -> Credentials:
    """Read what the settings name.

    Raises:
        SettingsError: a file is missing or is not what it should be, or the settings contradict each other.
    """
    named = [kind for kind in _KINDS if getattr(nats, kind) is not None]
    with_user = [url for url in nats.url.split(",") if urlsplit(url.strip()).username]
    if len(named) > 1 or (named and with_user):
        both = [*(f"`{kind}`" for kind in named), *(["a user in `url`"] if with_user else [])]
        _wrong("nats", f"{' and '.join(both)} are set: one kind of credentials is needed, or none")
    if (nats.user is None) != (nats.password is None):
        missing, given = ("user", "password") if nats.user is None else ("password", "user")
        _wrong(f"nats.{missing}", f"`{given}` is set, and a `{missing}` is needed with it")
    tls: Json = {
        "tls": _context(nats.tls) if nats.tls.is_required else None,
        "tls_hostname": nats.tls.server_name,
        "tls_handshake_first": nats.tls.handshake_first,
    }
    client = _client_options(nats)

    def make_broker_options() -> Json:
        security = _broker_security(
            client,
            ssl_context=tls["tls"],
            tls_hostname=tls["tls_hostname"],
            tls_handshake_first=tls["tls_handshake_first"],
        )
        return {"inbox_prefix": nats.inbox_prefix, "security": security}

    return Credentials(
        client={**client, **tls, "inbox_prefix": nats.inbox_prefix},
        is_encrypted=nats.tls.is_required or all(url.strip().startswith("tls://") for url in nats.url.split(",")),
        make_broker_options=make_broker_options,
    )


def _client_options(nats: Nats) -> Json:
    if nats.user is not None and nats.password is not None:
        return {"user": nats.user, "password": nats.password.get_secret_value()}
    if nats.token is not None:
        return {"token": nats.token.get_secret_value()}
    if nats.nkey_seed is not None:
        _check_seed("nats.nkey_seed", nats.nkey_seed, _read("nats.nkey_seed", nats.nkey_seed).strip())
        return {"nkeys_seed": str(nats.nkey_seed)}
    if nats.creds is not None:
        _check_creds(nats.creds)
        return {"user_credentials": str(nats.creds)}
    return {}


def _broker_security(client: Json, **tls: Any) -> "NatsSecurity":  # noqa: ANN401 - FastStream's own arguments
    from faststream.nats.security import (  # noqa: PLC0415 - only a process that runs stages has FastStream
        NatsCredentials,
        NatsNKey,
        NatsSecurity,
        NatsToken,
        NatsUserPassword,
    )

    match client:
        case {"user": user, "password": password}:
            return NatsUserPassword(user, password, **tls)
        case {"token": token}:
            return NatsToken(token, **tls)
        case {"nkeys_seed": seed}:
            return NatsNKey.from_file(seed, **tls)
        case {"user_credentials": creds}:
            return NatsCredentials.from_file(creds, **tls)
        case _:
            return NatsSecurity(**tls)


def _check_creds(path: Path) -> None:
    lines = _read("nats.creds", path).splitlines()
    blocks = {
        mark: next((lines[i + 1].strip() for i, line in enumerate(lines[:-1]) if mark in line), b"")
        for mark in (_JWT, _SEED)
    }
    for mark, block in blocks.items():
        if not block:
            reason = f"it has no block `{mark.decode()}`: what is needed is the file that `nsc generate creds` writes"
            _wrong("nats.creds", reason, path)
    _check_seed("nats.creds", path, blocks[_SEED])


def _check_seed(field: str, path: Path, seed: bytes) -> None:
    if b"\n" in seed or not seed.startswith(_USER_SEED):
        _wrong(field, "it holds no seed of a user's nkey: that is one line that begins with `SU`", path)
    try:
        nkeys.from_seed(bytearray(seed)).wipe()
    except Exception:  # noqa: BLE001 - the library raises whatever base32 and its checksum raise
        _wrong(field, "the seed in it is damaged: its checksum is wrong", path)


def _context(tls: Tls) -> ssl.SSLContext:
    """What the handshake is made with. Servers are always verified."""
    if (tls.cert is None) != (tls.key is None):
        missing, given = ("cert", "key") if tls.cert is None else ("key", "cert")
        _wrong(f"nats.tls.{missing}", f"`{given}` is set, and a `{missing}` is needed with it")
    context = ssl.create_default_context()
    if tls.ca is not None:
        authorities = _read("nats.tls.ca", tls.ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=authorities.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError):
            _wrong("nats.tls.ca", "it holds no certificate in PEM form", tls.ca)
    if tls.cert is not None and tls.key is not None:
        _read("nats.tls.cert", tls.cert)
        _read("nats.tls.key", tls.key)
        _load_own(context, tls.cert, tls.key)
    return context


def _load_own(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    def is_encrypted() -> str:
        _wrong("nats.tls.key", "the key is encrypted, and nobody is there to be asked for its password", key)

    try:
        context.load_cert_chain(cert, key, password=is_encrypted)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            _wrong("nats.tls.key", f"it is not the key of the certificate in {cert}", key)
        _wrong("nats.tls.cert", f"it and {key} do not hold a certificate and its private key in PEM form", cert)


def _read(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        _wrong(field, "no such file", path)
    except OSError as error:
        _wrong(field, f"it cannot be read: {error.strerror}", path)


def _wrong(field: str, reason: str, value: Any = None) -> NoReturn:  # noqa: ANN401 - a path, as it was given
    raise SettingsError(DefinitionProblem(reason, field=field, value=None if value is None else str(value)))
