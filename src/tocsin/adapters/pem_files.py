"""Certificates and private keys in the PEM files that settings name."""

import ssl
from pathlib import Path
from typing import NoReturn

from ..domain.definition import DefinitionProblem
from ..settings import SettingsError


def wrong(field: str, reason: str, path: Path | None = None, *, code: str) -> NoReturn:
    """Refuse a field, or the file that it names."""
    value = None if path is None else str(path)
    raise SettingsError(DefinitionProblem(reason, field=field, value=value, code=code))


def read_file(field: str, path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        wrong(field, "no such file", path, code="file-not-found")
    except OSError as error:
        wrong(field, f"it cannot be read: {error.strerror}", path, code="file-unreadable")


def load_authorities(context: ssl.SSLContext, field: str, path: Path) -> bytes:
    """Load the certificates of trusted authorities, and return the content of their file."""
    content = read_file(field, path)
    try:
        context.load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        wrong(field, "it contains no certificate in PEM format", path, code="certificate-missing")
    return content


def load_pair(context: ssl.SSLContext, section: str, cert: Path | None, key: Path | None) -> None:
    """Load the certificate and the key of a section, if it has them."""
    if cert is None and key is None:
        return
    if cert is None or key is None:
        missing, present = ("cert", "key") if cert is None else ("key", "cert")
        reason = f"`{present}` is set without a `{missing}`. Set both, or neither"
        wrong(f"{section}.{missing}", reason, code="required")
    read_file(f"{section}.cert", cert)
    read_file(f"{section}.key", key)

    def is_encrypted() -> str:
        wrong(f"{section}.key", "the key is encrypted; use a key without a password", key, code="key-encrypted")

    try:
        context.load_cert_chain(cert, key, password=is_encrypted)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            wrong(f"{section}.key", f"it is not the key of the certificate in {cert}", key, code="key-mismatch")
        reason = f"it and {key} do not contain a certificate and its private key in PEM format"
        wrong(f"{section}.cert", reason, cert, code="certificate-missing")
