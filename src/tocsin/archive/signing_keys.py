"""The key of an installation's notary: Ed25519, in PEM files that other programs read too."""

import binascii
from base64 import b64decode, b64encode
from typing import Final

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey as _SigningKey
from nacl.signing import VerifyKey

from ..domain.errors import TocsinError

_PKCS8: Final = bytes.fromhex("302e020100300506032b657004220420")
"""All that precedes the 32 bytes of a private key in DER (RFC 8410)."""
_SPKI: Final = bytes.fromhex("302a300506032b6570032100")
"""All that precedes the 32 bytes of a public key in DER (RFC 8410)."""
_PRIVATE: Final = "PRIVATE KEY"
_PUBLIC: Final = "PUBLIC KEY"


class KeyRefused(TocsinError, ValueError):
    """A text is no key of the needed kind."""

    code = "invalid-key"


class PublicKey:
    """Verifies signatures."""

    def __init__(self, raw: bytes) -> None:
        """`raw`: the 32 bytes of the key."""
        self._key = VerifyKey(raw)

    @classmethod
    def from_pem(cls, text: str) -> "PublicKey":
        """Read a key.

        Raises:
            KeyRefused: the text is no public key of Ed25519.
        """
        return cls(_raw(text, _PUBLIC, _SPKI))

    def as_pem(self) -> str:
        return _pem(_PUBLIC, _SPKI + self._key.encode())

    def has_signed(self, text: str, signature: str) -> bool:
        """Return whether a signature in base64 is one of this key over a text."""
        try:
            self._key.verify(text.encode(), b64decode(signature, validate=True))
        except (BadSignatureError, ValueError):  # a text that is no base64 is no signature
            return False
        return True


class SigningKey:
    """Signs checkpoints."""

    def __init__(self, raw: bytes) -> None:
        """`raw`: the 32 bytes of the key."""
        self._key = _SigningKey(raw)

    @classmethod
    def generate(cls) -> "SigningKey":
        return cls(_SigningKey.generate().encode())

    @classmethod
    def from_pem(cls, text: str) -> "SigningKey":
        """Read a key.

        Raises:
            KeyRefused: the text is no unencrypted private key of Ed25519.
        """
        return cls(_raw(text, _PRIVATE, _PKCS8))

    def as_pem(self) -> str:
        return _pem(_PRIVATE, _PKCS8 + self._key.encode())

    @property
    def public(self) -> PublicKey:
        return PublicKey(self._key.verify_key.encode())

    def sign(self, text: str) -> str:
        """Return the signature over a text, in base64."""
        return b64encode(self._key.sign(text.encode()).signature).decode()


def _pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{b64encode(der).decode()}\n-----END {label}-----\n"


def _raw(text: str, label: str, prefix: bytes) -> bytes:
    begin, end = f"-----BEGIN {label}-----", f"-----END {label}-----"
    _, found, rest = text.partition(begin)
    body, ended, _ = rest.partition(end)
    if not (found and ended):
        raise KeyRefused(f"it has no block {begin!r}. Use a file of `tocsin keys`.")
    try:
        der = b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError):
        raise KeyRefused(f"the block {begin!r} is not base64. Use a file of `tocsin keys`.") from None
    if len(der) != len(prefix) + 32 or not der.startswith(prefix):
        raise KeyRefused(f"the block {begin!r} holds another kind of key than Ed25519. Use a file of `tocsin keys`.")
    return der[len(prefix) :]
