"""Signatures of requests to webhooks, and the secrets that the settings open for paths."""

import base64
import hmac
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.definition.webhook_fields import Signature, SignatureScheme, is_signed, key_of, opened_secret

KEY = b"a-secret-of-32-bytes-for-testing"
NOW = datetime(2026, 11, 26, 10, 0, tzinfo=UTC)
STAMP = str(int(NOW.timestamp()))
BODY = b'{"a": 1}'


def digest(content: bytes, key: bytes = KEY) -> bytes:
    return hmac.digest(key, content, "sha256")


def base64_of(content: bytes) -> str:
    return base64.b64encode(digest(content)).decode()


def hex_of(content: bytes) -> str:
    return digest(content).hex()


GITHUB = {"x-hub-signature-256": f"sha256={hex_of(BODY)}"}
STANDARD = {
    "webhook-id": "m1",
    "webhook-timestamp": STAMP,
    "webhook-signature": f"v1,{base64_of(b'x')} v1,{base64_of(f'm1.{STAMP}.'.encode() + BODY)}",
}
STRIPE = {"stripe-signature": f"t={STAMP},v0=00,v1={hex_of(f'{STAMP}.'.encode() + BODY)}"}
OLD = str(int(NOW.timestamp()) - 301)


@pytest.mark.parametrize(
    ("scheme", "headers"),
    [
        (SignatureScheme(), GITHUB),
        (SignatureScheme(), {"x-hub-signature-256": hex_of(BODY)}),
        (SignatureScheme(signature_header="X-Shop"), {"x-shop": base64_of(BODY)}),
        (SignatureScheme("standard-webhooks"), STANDARD),
        (SignatureScheme("stripe"), STRIPE),
    ],
)
def test_request_is_signed_by_its_key_alone(scheme: SignatureScheme, headers: dict[str, str]) -> None:
    assert is_signed(scheme, KEY, headers, BODY, NOW)
    assert not is_signed(scheme, KEY + b"x", headers, BODY, NOW)
    assert not is_signed(scheme, KEY, headers, BODY + b" ", NOW)
    assert not is_signed(scheme, KEY, {}, BODY, NOW)


@pytest.mark.parametrize(
    ("scheme", "headers"),
    [
        (SignatureScheme("stripe"), {"stripe-signature": f"t={OLD},v1={hex_of(f'{OLD}.'.encode() + BODY)}"}),
        (SignatureScheme("stripe"), {"stripe-signature": f"v1={hex_of(b'.' + BODY)}"}),
        (
            SignatureScheme("standard-webhooks"),
            {
                "webhook-id": "m1",
                "webhook-timestamp": OLD,
                "webhook-signature": f"v1,{base64_of(f'm1.{OLD}.'.encode() + BODY)}",
            },
        ),
        (SignatureScheme("standard-webhooks"), {**STANDARD, "webhook-id": "m2"}),
        (SignatureScheme(), {"x-hub-signature-256": f"sha1={hex_of(BODY)}"}),
    ],
)
def test_old_or_foreign_signature_is_wrong(scheme: SignatureScheme, headers: dict[str, str]) -> None:
    assert not is_signed(scheme, KEY, headers, BODY, NOW)


@given(
    st.sampled_from(["hmac-sha256", "standard-webhooks", "stripe"]),
    st.dictionaries(
        st.sampled_from([*GITHUB, *STANDARD, *STRIPE]),
        st.text(st.characters(max_codepoint=255))
        | st.lists(st.sampled_from(["t=1", "v1=", "v1,", " ", "é"])).map("".join),
    ),
    st.binary(max_size=20),
)
def test_forged_headers_never_match(signature: Signature, headers: dict[str, str], body: bytes) -> None:
    assert not is_signed(SignatureScheme(signature), KEY, headers, body, NOW)


@pytest.mark.parametrize(
    ("secret", "signature"), [("short", "hmac-sha256"), ("whsec_é", "standard-webhooks"), ("", "stripe")]
)
def test_wrong_secret_is_not_shown(secret: str, signature: Signature) -> None:
    with pytest.raises(ValueError, match=r"bytes|base64") as refused:
        key_of(secret, signature)
    assert not secret or secret not in str(refused.value)


def test_key_of_standard_webhooks_is_decoded() -> None:
    assert key_of("whsec_" + base64.b64encode(KEY).decode(), "standard-webhooks") == KEY


OPENED = {"GITHUB": ["/hooks/github", "/hooks/git/*"], "file:/run/shop": ["/hooks/shop", "/hooks/git/both"]}


@pytest.mark.parametrize(
    ("path", "secret", "name"),
    [
        ("/hooks/github", None, "GITHUB"),
        ("/hooks/github", "${env:GITHUB}", "GITHUB"),
        ("/hooks/github", "${file:/run/shop}", None),
        ("/hooks/git/a", None, "GITHUB"),
        ("/hooks/git/a/b", None, None),
        ("/hooks/git", None, None),
        ("/hooks/git/both", None, None),
        ("/hooks/git/both", "${file:/run/shop}", "file:/run/shop"),
        ("/hooks/other", "${env:GITHUB}", None),
    ],
)
def test_settings_open_one_secret_for_a_path(path: str, secret: str | None, name: str | None) -> None:
    assert opened_secret(path, secret, OPENED) == name
