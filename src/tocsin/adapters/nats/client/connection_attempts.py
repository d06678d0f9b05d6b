"""The attempts to reach a first server, and the reasons why they fail.

Each reason says what failed, why, and what to do, with a stable code.
"""

import asyncio
import errno
import re
import socket
import ssl
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from nats import errors

from .... import telemetry
from ....ports import LogUnavailable
from ....settings.loader import without_password

_REJECTED: Final = "nats-credentials-rejected"
_TLS: Final = "nats-tls-failed"
_PROTOCOL: Final = "nats-protocol-mismatch"
_UNREACHABLE: Final = "nats-unreachable"
TLS_NOT_OFFERED: Final = "nats-tls-not-offered"
_MEANINGS: Final[Mapping[str, str]] = {
    _REJECTED: "A NATS server refuses the credentials, or they have expired.",
    _PROTOCOL: "The program that listens at an address does not speak NATS, or starts with TLS.",
    _TLS: "The TLS handshake with a NATS server failed, or its certificate is not accepted.",
    TLS_NOT_OFFERED: "A NATS server does not speak TLS, and the settings require it.",
    _UNREACHABLE: "No NATS server answers.",
}


class ConnectionFailed(LogUnavailable):
    """No connection to a NATS server; `code` names the kind of the reason."""

    code = _UNREACHABLE
    codes: ClassVar[Mapping[str, str]] = _MEANINGS

    def __init__(self, text: str, error: BaseException | None = None, *, code: str | None = None) -> None:
        """Take the code from the client's error, which is None if no server answered."""
        super().__init__(text)
        self.code = code or reason_for(error).code


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for a failed attempt.

    `is_final`: the server rejected the client, so a retry does not help.
    """

    code: str
    text: str
    is_final: bool = False


_SERVER_ERRORS: Final = {
    "authorization violation": Reason(
        _REJECTED,
        "the server refuses these credentials (Authorization Violation): check `nats.user` and `nats.password`, "
        "`nats.token`, `nats.nkey_seed` or `nats.creds`, as the server requires",
        is_final=True,
    ),
    "user authentication expired": Reason(
        _REJECTED, "these credentials have expired (User Authentication Expired): create a new JWT", is_final=True
    ),
    "account authentication expired": Reason(
        _REJECTED,
        "the account of these credentials has expired (Account Authentication Expired): renew the account's JWT",
        is_final=True,
    ),
    "user authentication revoked": Reason(
        _REJECTED, "these credentials were revoked (User Authentication Revoked): create new credentials", is_final=True
    ),
    "expecting info": Reason(
        _PROTOCOL,
        "the program that listens there does not speak NATS, or starts with TLS: check the URL and "
        "`nats.tls.handshake_first`",
    ),
}
_SYSTEM_ERRORS: Final[dict[type[BaseException], Reason]] = {
    socket.gaierror: Reason(_UNREACHABLE, "no such host"),
    asyncio.TimeoutError: Reason(_UNREACHABLE, "no server answers in time"),
    ConnectionRefusedError: Reason(_UNREACHABLE, "nothing listens there"),
}
_TLS_ERRORS: Final = {
    "CERTIFICATE_REQUIRED": "the server requires a client certificate: set `nats.tls.cert` and `nats.tls.key`",
    "BAD_CERTIFICATE": "the server does not accept the client certificate: replace `nats.tls.cert`",
    "UNKNOWN_CA": "the server does not know the authority that signed the client certificate: replace `nats.tls.cert`",
    "CERTIFICATE_EXPIRED": "the client certificate has expired: replace `nats.tls.cert`",
    "WRONG_VERSION_NUMBER": "the server does not start with TLS: `nats.tls.handshake_first` needs a server that has "
    "`handshake_first` too",
}
_ALERT_PREFIX: Final = "ALERT_"
_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
_NOT_LISTENING: Final = frozenset({errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def is_not_listening(error: BaseException) -> bool:
    """Return whether the machine answered that no process listens on the port.

    For a name with several addresses, asyncio raises one `OSError` that lists the error of each address. An address family
    that this machine does not have counts as not listening.
    """
    if isinstance(error, ConnectionRefusedError):
        return True
    if not isinstance(error, OSError) or error.errno is not None:
        return False
    numbers = {int(number) for number in _ERRNO.findall(str(error))}
    return errno.ECONNREFUSED in numbers and numbers <= _NOT_LISTENING


def reason_for(error: BaseException | None) -> Reason:  # noqa: PLR0911 - one line for each kind of error
    """Return the reason for an error of a client that connects; None: silence."""
    if error is None:
        return Reason(_UNREACHABLE, "no server answers")
    for kind, reason in _SYSTEM_ERRORS.items():
        if isinstance(error, kind):
            return reason
    if is_not_listening(error):
        return _SYSTEM_ERRORS[ConnectionRefusedError]
    if isinstance(error, ssl.SSLError):
        return Reason(_TLS, _tls_text(error), is_final=True)
    if isinstance(error, OSError):
        return Reason(_UNREACHABLE, error.strerror or type(error).__name__)
    text = str(error)
    for mark, reason in _SERVER_ERRORS.items():
        if mark in text.lower():
            return reason
    return Reason(_UNREACHABLE, text.removeprefix("nats: ") or type(error).__name__)


def _tls_text(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate is not accepted: {error.verify_message}. Set `nats.tls.ca` to the authorities to "
            "trust, and `nats.tls.server_name` to the name in the certificate"
        )
    reason = error.reason or ""
    known = next((text for mark, text in _TLS_ERRORS.items() if mark in reason), None)
    alert = known or (reason.partition(_ALERT_PREFIX)[2] or reason or str(error)).lower().replace("_", " ")
    return f"the TLS handshake failed: {alert}"


_WHAT_HELPS: Final = "Start it, or name another with --nats, TOCSIN_NATS_URL or `nats.url`"

REPEAT_INTERVAL_S: Final = 60.0
"""Seconds between two lines of the log for attempts that fail for the same reason; the client tries five times a second."""
_MAX_REASONS: Final = 10
"""Lines of the log within `REPEAT_INTERVAL_S`."""

_log = telemetry.get_logger("tocsin.nats")


class FirstConnection:
    """The attempts to reach a first server, and the log of all attempts.

    The client itself retries without a limit; this class decides when to give up.
    """

    def __init__(self, servers: str | list[str]) -> None:
        urls = [servers] if isinstance(servers, str) else servers
        self.where = ", ".join(map(without_password, urls))
        self.is_over = False
        self._refused: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._absent = asyncio.Event()
        """Set once no process listens at any of the servers."""
        self._absent_in_a_row = 0
        self._server_count = len(urls)
        self._last: Exception | None = None
        self._failures = 0
        self._logged: set[str] = set()
        """The reasons that were logged since `_logged_at`: attempts may fail for several reasons by turns."""
        self._logged_at = 0.0

    def end_of_failures(self) -> int:
        """Return how many attempts failed, and count from 0 again."""
        failures, self._failures = self._failures, 0
        self._logged.clear()
        return failures

    def record_failure(self, error: Exception) -> None:
        """Record a failed attempt; log each new reason, and one that goes on each `REPEAT_INTERVAL_S`."""
        self._last = error
        self._absent_in_a_row = self._absent_in_a_row + 1 if is_not_listening(error) else 0
        if self._absent_in_a_row >= self._server_count:
            self._absent.set()
        reason = reason_for(error)
        if reason.is_final and not self._refused.done():
            self._refused.set_result(error)
        self._failures += 1
        now = time.monotonic()
        if now >= self._logged_at + REPEAT_INTERVAL_S:
            self._logged.clear()
            self._logged_at = now
        if reason.text not in self._logged and len(self._logged) < _MAX_REASONS:
            self._logged.add(reason.text)
            _log.warning(
                "waiting for NATS",
                action="nats-awaited",
                servers=self.where,
                reason=reason.text,
                attempts=self._failures,
            )

    async def run(self, connecting: Coroutine[Any, Any, None], within: float | None) -> None:
        """Wait until the client is connected.

        A limited wait ends immediately if no process listens at any of the servers: only a server that runs can answer later.
        It raises `ConnectionFailed`.
        """
        attempt = asyncio.ensure_future(connecting)
        awaited: list[asyncio.Future[Any]] = [attempt, self._refused]
        absent = asyncio.ensure_future(self._absent.wait())
        if within is not None:
            awaited.append(absent)
        try:
            await asyncio.wait(awaited, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            if attempt.done():
                attempt.result()
            elif self._refused.done():
                error = self._refused.result()
                raise ConnectionFailed(f"{self.where}: {reason_for(error).text}", error)
            else:
                reason = reason_for(self._last).text
                raise ConnectionFailed(f"no NATS server answers at {self.where}: {reason}. {_WHAT_HELPS}", self._last)
        except (errors.Error, OSError) as error:  # asyncio's TimeoutError is an OSError
            raise ConnectionFailed(f"{self.where}: {reason_for(error).text}", error) from error
        finally:
            self.is_over = True
            self.end_of_failures()
            self._refused.cancel()
            absent.cancel()
            if not attempt.done():
                attempt.cancel()
                await asyncio.wait([attempt])
