"""E-mails: a message for each notification, handed to a mail server by SMTP."""

import asyncio
from collections.abc import Mapping
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final

import aiosmtplib
from aiosmtplib.response import SMTPResponse

from ...domain.notification import Notification
from ...domain.notification_template import body_by, body_of, subject_by, subject_of
from ...domain.text import counted, cut, printable
from ...ports import ChannelRefused
from ...settings.channels import EmailChannel
from .webhook import by_template, trusted

MAX_ANSWER: Final = 200
"""Characters of a mail server's answer in an error."""
_PERMANENT: Final = 500


class Mail:
    """Sends notifications as e-mails."""

    def __init__(self, name: str, settings: EmailChannel) -> None:
        self._settings = settings
        self._tls = trusted(settings.ca_file, name)
        self._server = f"{settings.host}:{settings.server_port}"

    async def send(self, notification: Notification) -> None:
        settings = self._settings
        message = message_of(notification, settings)
        try:
            async with asyncio.timeout(settings.timeout):
                refused, _ = await aiosmtplib.send(
                    message,
                    sender=settings.sender,
                    recipients=settings.recipients,
                    hostname=settings.host,
                    port=settings.server_port,
                    username=settings.user,
                    password=None if settings.password is None else settings.password.get_secret_value(),
                    use_tls=settings.tls == "tls",
                    start_tls=settings.tls == "starttls",
                    tls_context=self._tls,
                    timeout=settings.timeout,
                )
        except aiosmtplib.SMTPRecipientsRefused as error:
            answers = {each.recipient: SMTPResponse(each.code, each.message) for each in error.recipients}
            raise self._refused_recipients(answers) from None
        except aiosmtplib.SMTPResponseException as error:
            answer = SMTPResponse(error.code, error.message)
            raise ChannelRefused(f"{self._server} answered {_text(answer)}", retryable=_is_passing(answer)) from None
        except TimeoutError:
            raise ChannelRefused(
                f"{self._server} did not answer within {settings.timeout:g} s", retryable=True
            ) from None
        except OSError as error:  # also the errors of TLS, and those of aiosmtplib for lost connections
            raise ChannelRefused(f"{self._server} cannot be reached: {_short(error)}", retryable=True) from None
        except aiosmtplib.SMTPException as error:
            raise ChannelRefused(f"{self._server} cannot do what is set: {_short(error)}", retryable=False) from None
        if refused:
            raise self._refused_recipients(refused)

    def _refused_recipients(self, refused: Mapping[str, SMTPResponse]) -> ChannelRefused:
        """Return the error for refused recipients; the others get the message again."""
        recipient, answer = next(iter(refused.items()))
        all_ = counted(len(self._settings.recipients), "recipient")
        message = f"{self._server} refused {len(refused)} of {all_}, {recipient} with {_text(answer)}"
        return ChannelRefused(message, retryable=any(map(_is_passing, refused.values())))


def message_of(notification: Notification, settings: EmailChannel) -> EmailMessage:
    """Return the e-mail of a notification, the same at each try."""
    sender = settings.sender
    message = EmailMessage(SMTP)
    message["From"] = sender
    message["To"] = ", ".join(settings.recipients)
    message["Subject"] = _without_words(by_template(settings.subject, notification, subject_by, subject_of))
    message["Date"] = notification.at
    message["Message-ID"] = f"<{notification.id}@{sender.partition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # so that no absent recipient answers (RFC 3834)
    message["X-Tocsin-Kind"] = notification.kind.value
    message.set_content(by_template(settings.body, notification, body_by, body_of))
    return message


def _without_words(subject: str) -> str:
    """Return a subject without encoded words (RFC 2047), which Python decodes with line breaks."""
    return subject.replace("=?", "= ?")


def _is_passing(answer: SMTPResponse) -> bool:
    code: int = answer.code
    return code < _PERMANENT


def _text(answer: SMTPResponse) -> str:
    return f"{answer.code}: {printable(cut(answer.message, MAX_ANSWER))}"


def _short(error: Exception) -> str:
    return printable(cut(str(error), MAX_ANSWER)) or type(error).__name__
