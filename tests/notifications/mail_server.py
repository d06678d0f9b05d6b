"""A mail server for the tests, which keeps the messages that it accepts."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP as POLICY

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tocsin.testing import settle


class Mailbox:
    """The handler of a mail server: what it accepts, and what it answers."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        self.envelopes: list[Envelope] = []
        self.was_encrypted: list[bool] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.refused: dict[str, str] = {}
        """The answer for each recipient who is refused."""
        self.answer = "250 OK"
        self.port = 0

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        content = envelope.original_content
        assert content is not None
        message = message_from_bytes(content, EmailMessage, policy=POLICY)
        self.messages.append(message)
        self.envelopes.append(envelope)
        self.was_encrypted.append(
            isinstance(server.transport, asyncio.Transport)
            and server.transport.get_extra_info("sslcontext") is not None
        )
        return self.answer

    def login(self, *request: object) -> AuthResult:
        """Check a password; `request` ends with the data of the login."""
        data = request[-1]
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"hunter2", handled=False)

    @asynccontextmanager
    async def running(
        self, *, tls: ssl.SSLContext | None = None, is_tls_at_start: bool = False
    ) -> AsyncIterator["Mailbox"]:
        """Run the server; `tls`: by STARTTLS, unless it is there from the start."""

        def serve() -> SMTP:
            return SMTP(
                self,
                hostname="mail.test",
                authenticator=self.login,
                auth_require_tls=False,
                tls_context=None if is_tls_at_start else tls,
                loop=asyncio.get_running_loop(),
            )

        loop = asyncio.get_running_loop()
        server = await loop.create_server(serve, "127.0.0.1", 0, ssl=tls if is_tls_at_start else None)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await settle()
