"""Webhooks: the fields of triggers, and the signature and identity of a request.

    hmac-sha256         the body, in one header: `X-Hub-Signature-256: sha256=<hex>` of GitHub; base64 is read too
    standard-webhooks   `webhook-id`, `webhook-timestamp` and the body (standardwebhooks.com)
    stripe              a timestamp and the body, in `Stripe-Signature: t=…,v1=<hex>`

Names of headers are in lower case.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, Literal, TypeAlias

from ..secret_reference import SecretReferenceError, find_references, reference
from .errors import DefinitionProblem, show

Signature: TypeAlias = Literal["hmac-sha256", "standard-webhooks", "stripe"]
"""The method by which a sender signs its requests."""

TOLERANCE: Final = timedelta(minutes=5)
"""How far the timestamp of a signature may be from the clock of the API."""
MIN_SECRET_BYTES: Final = 16
"""The least of a secret: a shorter secret can be guessed from one request."""
_SIGNATURE_HEADERS: Final[Mapping[Signature, str]] = {
    "hmac-sha256": "x-hub-signature-256",
    "standard-webhooks": "webhook-signature",
    "stripe": "stripe-signature",
}
_DELIVERY_HEADERS: Final[Mapping[Signature, str]] = {
    "hmac-sha256": "x-github-delivery",
    "standard-webhooks": "webhook-id",
}
_STANDARD_SECRET: Final = "whsec_"  # noqa: S105 - the beginning of a secret
_MAX_SIGNATURES: Final = 10
"""Signatures of one request that are compared: a sender may sign with an old and a new secret."""
_TIMESTAMP: Final = re.compile("[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class SignatureScheme:
    """The method of signatures, and the headers of a request to a webhook."""

    signature: Signature = "hmac-sha256"
    signature_header: str | None = None
    """The header of an `hmac-sha256`; None: the header of GitHub."""
    delivery_header: str | None = None
    """The header with the identity of a delivery; None: the header of the scheme."""

    @property
    def header(self) -> str:
        return (self.signature_header or _SIGNATURE_HEADERS[self.signature]).lower()

    @property
    def delivery(self) -> str | None:
        """The header that holds the identity of a delivery; None: it has none."""
        name = self.delivery_header or _DELIVERY_HEADERS.get(self.signature)
        return None if name is None else name.lower()


def key_of(secret: str, signature: Signature) -> bytes:
    """Return the key of a secret; raise ValueError, without showing it, if it is unfit."""
    key = secret.encode()
    if signature == "standard-webhooks":
        try:
            key = base64.b64decode(secret.removeprefix(_STANDARD_SECRET), validate=True)
        except (binascii.Error, ValueError):  # the latter: a character outside of ASCII
            raise ValueError(f"must be `{_STANDARD_SECRET}` and base64") from None
    if len(key) < MIN_SECRET_BYTES:
        raise ValueError(f"has {len(key)} bytes, fewer than {MIN_SECRET_BYTES}: let the sender use a longer secret")
    return key


def is_signed(scheme: SignatureScheme, key: bytes, headers: Mapping[str, str], body: bytes, now: datetime) -> bool:
    """Return whether a request has a valid signature of a key.

    Digests are compared in constant time.
    """
    value = headers.get(scheme.header, "")
    if scheme.signature == "hmac-sha256":
        return _matches(key, body, [_decoded(value.removeprefix("sha256="))])
    if scheme.signature == "standard-webhooks":
        timestamp = headers.get("webhook-timestamp", "")
        signed = f"{headers.get('webhook-id', '')}.{timestamp}."
        given = [_decoded(part[3:]) for part in value.split(" ") if part.startswith("v1,")]
    else:
        parts = [part.strip().partition("=") for part in value.split(",")]
        timestamp = next((text for name, _, text in parts if name == "t"), "")
        signed = f"{timestamp}."
        given = [_decoded(text) for name, _, text in parts if name == "v1"]
    if not _matches(key, signed.encode() + body, given) or not _TIMESTAMP.fullmatch(timestamp):
        return False
    return abs(now.timestamp() - int(timestamp)) <= TOLERANCE.total_seconds()


def _matches(key: bytes, content: bytes, given: list[bytes]) -> bool:
    wanted = hmac.digest(key, content, sha256)
    return sum(hmac.compare_digest(wanted, each) for each in given[:_MAX_SIGNATURES]) > 0


def _decoded(text: str) -> bytes:
    """Return a digest in hexadecimal or base64; empty: it is neither."""
    try:
        return bytes.fromhex(text) if len(text) == 2 * sha256().digest_size else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


WEBHOOK_PREFIX: Final = "/hooks/"
_PATH: Final = re.compile(r"/hooks(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)+")
_MAX_PATH: Final = 255
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")


def is_webhook_path(path: str) -> bool:
    return len(path) <= _MAX_PATH and _PATH.fullmatch(path) is not None


def opens(opened: str, path: str) -> bool:
    """Return whether the settings open a path; `/FOLDER/*` opens each in a folder."""
    folder, _, name = opened.rpartition("/")
    return path == opened or (name == "*" and path.rpartition("/")[0] == folder)


def secret_name(secret: str) -> str | None:
    """Return the name of the secret that a reference has; None: it is no reference."""
    try:
        names = find_references(secret)
    except SecretReferenceError:
        return None
    return names[0] if len(names) == 1 and reference(names[0]) == secret else None


def opened_secret(path: str, secret: str | None, opened: Mapping[str, Iterable[str]]) -> str | None:
    """Return the name of a webhook's secret; None: the settings open none or several.

    `opened`: the paths of each secret that the settings open.
    """
    names = [name for name, paths in opened.items() if any(opens(each, path) for each in paths)]
    if secret is not None:
        names = [name for name in names if name == secret_name(secret)]
    return names[0] if len(names) == 1 else None


def webhook_problems(
    path: str, secret: str | None, scheme: SignatureScheme, *, has_key: bool
) -> Iterator[DefinitionProblem]:
    """Yield the problems of a webhook. No problem shows a secret."""
    if not is_webhook_path(path):
        reason = (
            f"must be a path of at most {_MAX_PATH} characters below `{WEBHOOK_PREFIX}`, such as `/hooks/github`, of letters, digits "
            "and `._~-`"
        )
        yield DefinitionProblem(reason, field="webhook", value=show(path), code="invalid-value")
    if secret is not None and secret_name(secret) is None:
        reason = "must refer to a secret of the API, which the log never holds: write `${env:NAME}` or `${file:/PATH}` and nothing else"
        yield DefinitionProblem(reason, field="secret", code="malformed-secret-reference")
    for field in ("signature_header", "delivery_header"):
        header = getattr(scheme, field)
        if header is not None and not _HEADER.fullmatch(header):
            yield DefinitionProblem(
                "is not the name of a header", field=field, value=show(header), code="invalid-value"
            )
    if scheme.signature_header is not None and scheme.signature != "hmac-sha256":
        yield DefinitionProblem(
            "belongs to `signature: hmac-sha256`: leave it out", field="signature_header", code="exclusive-fields"
        )
    if scheme.delivery is None and not has_key:
        reason = f"required with `signature: {scheme.signature}`, whose requests have no identity in a header: write `body.id`"
        yield DefinitionProblem(reason, field="key", code="required")
