"""Nkeys and JWTs, as `nsc` would make them for an operator, an account, a user."""

import base64
import json
import time
from dataclasses import dataclass
from hashlib import sha256
from os import urandom
from typing import Any

import nkeys  # type: ignore[import-untyped]

REVOKED_AT = 2000


@dataclass(frozen=True)
class Key:
    """A pair of keys."""

    seed: str
    public: str

    def sign(self, name: str, sub: str, nats: dict[str, Any], **more: object) -> str:
        """A JWT that vouches for the key `sub`."""
        claims = {"iss": self.public, "sub": sub, "name": name, "iat": int(time.time()), "nats": nats, **more}
        claims["jti"] = sha256(json.dumps(claims).encode()).hexdigest()
        head = _part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
        signed = f"{head}.{_part(json.dumps(claims).encode())}"
        return f"{signed}.{_part(nkeys.from_seed(bytearray(self.seed.encode())).sign(signed.encode()))}"


def key(kind: int = nkeys.PREFIX_BYTE_USER) -> Key:
    """A new pair of a kind."""
    seed = bytes(nkeys.encode_seed(urandom(32), kind))
    return Key(seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode())


@dataclass(frozen=True)
class Operator:
    """An operator with one account for Tocsin: what its server is configured with, and the credentials of users."""

    config: str
    revoking: str
    """The configuration of a server that refuses users whose JWT was issued at `REVOKED_AT` or before."""
    account: Key

    def creds(self, **more: object) -> str:
        """The text of a .creds file of a new user."""
        user = key()
        jwt = self.account.sign(
            "tocsin", user.public, {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}, **more
        )
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )


def operator() -> Operator:
    """Return a new key."""
    root, account, system = (
        key(kind) for kind in (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_ACCOUNT)
    )
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1) | {"wildcards": True}
    storage = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    own = root.sign("O", root.public, {"type": "operator", "version": 2})
    claims = {"type": "account", "version": 2, "limits": limits}

    def config(**more: object) -> str:
        preloaded = {
            account.public: root.sign("A", account.public, {**claims, "limits": {**limits, **storage}, **more}),
            system.public: root.sign("SYS", system.public, claims),
        }
        lines = "\n".join(f"  {public}: {jwt}" for public, jwt in preloaded.items())
        return f"operator: {own}\nsystem_account: {system.public}\nresolver: MEMORY\nresolver_preload {{\n{lines}\n}}\n"

    return Operator(config(), config(revocations={"*": REVOKED_AT}), account)


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
