"""Why no connection came about, in words, and whether trying again could change it."""

import asyncio
import socket
import ssl
from typing import Final

_REFUSED: Final = {
    "authorization violation": "the server refuses these credentials (Authorization Violation): "
    "check `nats.user` and `nats.password`, `nats.token`, `nats.nkey_seed` or `nats.creds`, whichever the server asks for",
    "user authentication expired": "these credentials have expired (User Authentication Expired): a new JWT is needed",
    "account authentication expired": "the account of these credentials has expired (Account Authentication Expired)",
    "user authentication revoked": "these credentials were revoked (User Authentication Revoked)",
}
_SAID: Final = {
    **_REFUSED,
    "expecting info": "what answers there does not speak NATS, or begins with TLS (`nats.tls.handshake_first`)",
}
_PLAIN: Final[dict[type[BaseException], str]] = {
    socket.gaierror: "no such host",
    asyncio.TimeoutError: "nothing answers in time",
    ConnectionRefusedError: "nothing listens there",
}
_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "it asks for a certificate of ours: set `nats.tls.cert` and `nats.tls.key`",
    "BAD_CERTIFICATE": "it does not accept our certificate (`nats.tls.cert`)",
    "UNKNOWN_CA": "it does not know the authority that signed our certificate (`nats.tls.cert`)",
    "CERTIFICATE_EXPIRED": "our certificate has expired (`nats.tls.cert`)",
    "WRONG_VERSION_NUMBER": "what answers there does not begin with TLS: `nats.tls.handshake_first` fits only servers "
    "that are set so as well",
}
_ALERT: Final = "ALERT_"


def reason_of(error: BaseException | None) -> str:
    """One error of a client that connects, as a user is told it."""
    if error is None:
        return "nothing answers"
    for kind, reason in _PLAIN.items():
        if isinstance(error, kind):
            return reason
    if isinstance(error, OSError):
        return _of_the_system(error)
    said = str(error)
    for mark, reason in _SAID.items():
        if mark in said.lower():
            return reason
    return said.removeprefix("nats: ") or type(error).__name__


def is_final(error: BaseException) -> bool:
    """Whether the server has said no: it would say so again."""
    return isinstance(error, ssl.SSLError) or any(mark in str(error).lower() for mark in _REFUSED)


def _of_the_system(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate is not accepted: {error.verify_message}. `nats.tls.ca` names the authorities "
            "that are believed, `nats.tls.server_name` the name that it must bear"
        )
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed: {_alert(error)}"
    return error.strerror or type(error).__name__


def _alert(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    known = next((text for mark, text in _ALERTS.items() if mark in reason), None)
    return known or (reason.partition(_ALERT)[2] or reason or str(error)).lower().replace("_", " ")
