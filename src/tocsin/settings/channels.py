"""The settings of channels: the receivers of notifications."""

import base64
import binascii
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, SecretStr, model_validator

from ..domain.definition import Notify, channel_name
from ..domain.notification_template import body_by, check, check_subject, json_by
from .builtin import AbsolutePath
from .fields import Duration, Patience, Section, is_http_url, is_loopback, must

MAX_HEADERS: Final = 20
MAX_RECIPIENTS: Final = 50
MIN_KEY_BYTES: Final = 24
"""The least that Standard Webhooks allow; the most is `MAX_KEY_BYTES`."""
MAX_KEY_BYTES: Final = 64
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - what a secret begins with

_RESERVED: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "host", "te", "trailer", "transfer-encoding"}
)
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"(?![\t ])[\t\x20-\x7e]{0,4096}(?<![\t ])")
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_MAILBOX: Final = re.compile(rf"(?=[^@]{{1,64}}@){_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*")
_HOST: Final = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*|[0-9a-fA-F:.]+")
_PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}


def webhook_key(secret: str) -> bytes:
    """Return the key of a secret of Standard Webhooks."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):  # the latter: a character outside of ASCII
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(
            f"must be `{SECRET_PREFIX}` and {MIN_KEY_BYTES} to {MAX_KEY_BYTES} random bytes in base64, such as the output of "
            f'`echo "{SECRET_PREFIX}$(openssl rand -base64 32)"`'
        )
    return key


def _webhook_url(url: SecretStr) -> SecretStr:
    if not is_http_url(url.get_secret_value()) or "#" in url.get_secret_value():
        raise ValueError("must be http(s)://HOST[:PORT]/PATH of a receiver, without a fragment")
    return url


def _headers(headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name, value in headers.items():
        small = name.lower()
        if not _HEADER.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is not the name of a header")
        if small in _RESERVED or small.startswith("webhook-"):
            raise ValueError(f"{name} is set by Tocsin; leave it out")
        if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
            raise ValueError(
                f"the value of {name} must be printable ASCII of at most 4,096 characters, without blanks around it"
            )
    if len({name.lower() for name in headers}) < len(headers):
        raise ValueError("a header is set twice, in other letters")
    return headers


def _apprise_url(url: SecretStr) -> SecretStr:
    text = url.get_secret_value()
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://.", text) or not text.isprintable():
        raise ValueError("must be a URL of Apprise, such as `slack://…`; the documentation of Apprise lists all")
    return url


def _checked(check: Callable[[str], object], secret: SecretStr) -> SecretStr:
    check(secret.get_secret_value())
    return secret


Mailbox: TypeAlias = Annotated[
    str, must(_MAILBOX.fullmatch, "must be an address such as `ops@example.com`, in ASCII and without a name")
]
SendTimeout: TypeAlias = Annotated[Duration, Field(le=50)]
"""Seconds for one try, from the connection to the answer."""
# Templates are secrets, because many services expect a key in the text, such as `routing_key`.
SubjectTemplate: TypeAlias = Annotated[SecretStr, AfterValidator(partial(_checked, check_subject))]
BodyTemplate: TypeAlias = Annotated[SecretStr, AfterValidator(partial(_checked, partial(check, body_by)))]
JsonTemplate: TypeAlias = Annotated[SecretStr, AfterValidator(partial(_checked, partial(check, json_by)))]


class WebhookChannel(Section):
    """A channel that sends each notification to a URL, as JSON that it can sign.

    Private addresses are allowed, because operators write these settings. Redirects are not followed.
    """

    type: Literal["webhook"]
    """The type of the channel: `webhook`."""
    url: Annotated[SecretStr, AfterValidator(_webhook_url)]
    """The URL that gets a POST request. It is shown masked, because the URLs of many services have a token."""
    secret: Annotated[SecretStr, AfterValidator(partial(_checked, webhook_key))] | None = None
    """The secret for signatures of Standard Webhooks: `whsec_` and base64; null: requests have no signature."""
    headers: Annotated[dict[str, SecretStr], Field(max_length=MAX_HEADERS), AfterValidator(_headers)] = {}  # noqa: RUF012
    """Further headers, such as `Authorization`. Their values are shown masked."""
    body: JsonTemplate | None = None
    """Template of the JSON that is sent, such as `{"text": "{{ title }}"}`; null: the fields of the notification. It is shown
    masked, because many services expect a key in it."""
    ca_file: AbsolutePath | None = None
    """File with certificates of authorities, in PEM format, that are trusted beside public authorities."""
    timeout: SendTimeout = 10.0
    """Time for one try, at most 50 seconds."""


class EmailChannel(Section):
    """A channel that sends each notification as an e-mail. It needs the extra `notify`."""

    type: Literal["email"]
    """The type of the channel: `email`."""
    host: Annotated[str, must(_HOST.fullmatch, "must be the name or the address of a server, without a port")]
    """Name of the mail server (SMTP)."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """TCP port of the mail server; by default 587, with `tls: tls` 465, and with `tls: none` 25."""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """`starttls`: encrypt after the greeting, or send nothing; `tls`: encrypt from the start; `none`: send in clear text."""
    user: str | None = None
    """User name, together with `password`."""
    password: SecretStr | None = None
    """Password of `user`. It needs TLS, unless the mail server is on this machine."""
    sender: Mailbox
    """Address of the sender."""
    recipients: Annotated[tuple[Mailbox, ...], Field(min_length=1, max_length=MAX_RECIPIENTS)]
    """Addresses of the recipients. They see each other."""
    subject: SubjectTemplate | None = None
    """Template of the subject, such as `[tocsin] {{ title }}`; null: the job and what happened. It is shown masked."""
    body: BodyTemplate | None = None
    """Template of the plain text; null: what happened, why, and the link. It is shown masked."""
    ca_file: AbsolutePath | None = None
    """File with certificates of authorities, in PEM format, that are trusted beside public authorities."""
    timeout: SendTimeout = 30.0
    """Time for one try, at most 50 seconds."""

    @property
    def server_port(self) -> int:
        return self.port or _PORTS[self.tls]

    @model_validator(mode="after")
    def _sends_no_password_in_the_open(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("`user` and `password` belong together: set both or none")
        if self.password is not None and self.tls == "none" and not is_loopback(self.host):
            raise ValueError(
                "`password` needs `tls: starttls` or `tls: tls`, because the mail server is another machine"
            )
        return self


class AppriseChannel(Section):
    """A channel of Apprise: Slack, Teams, PagerDuty and others. It needs the extra `notify`.

    Private addresses are allowed, because operators write these settings.
    """

    type: Literal["apprise"]
    """The type of the channel: `apprise`."""
    url: Annotated[SecretStr, AfterValidator(_apprise_url)]
    """URL of a service, as the documentation of Apprise lists them. It is shown masked."""
    subject: SubjectTemplate | None = None
    """Template of the title; null: the job and what happened. It is shown masked."""
    body: BodyTemplate | None = None
    """Template of the text below the title; null: what happened, why, and the link. It is shown masked."""
    timeout: SendTimeout = 30.0
    """Time for one try, at most 50 seconds."""


OutsideChannel: TypeAlias = WebhookChannel | EmailChannel | AppriseChannel
"""The settings of a channel that leads out of NATS."""

MAX_CHANNELS: Final = 50
ChannelName: TypeAlias = Annotated[str, AfterValidator(channel_name)]


def _page(url: str) -> str:
    if not is_http_url(url) or any(character in url for character in "?#"):
        raise ValueError("must be a URL without a query, such as `https://tocsin.example.com`")
    return url.rstrip("/")


class NatsChannel(Section):
    """A channel that publishes each notification as `cron.alert.<job>`."""

    type: Literal["nats"] = "nats"
    """The type of the channel: `nats`."""


ChannelSettings: TypeAlias = Annotated[NatsChannel | OutsideChannel, Field(discriminator="type")]
"""The settings of one channel; `type` decides on its fields."""


class NotificationDefault(Section):
    """A rule for jobs without a `notify` of their own."""

    tags: tuple[str, ...] = ()
    """The job has one of these tags; empty: any tags or none."""
    owner: str | None = None
    """The job has this `owner`; null: any owner or none."""
    notify: Notify
    """What to notify of, and by which channels. A channel of a namespace gets nothing about jobs of others."""


class Notifications(Section):
    """Notifications to people and programs about jobs."""

    channels: Annotated[dict[ChannelName, ChannelSettings], Field(max_length=MAX_CHANNELS)] = {}  # noqa: RUF012 - pydantic copies it
    """The receivers of notifications by name, at most 50: each has a `type`, which decides on its other settings.

    A name with a dot, such as `payments.ops`, belongs to the namespace before the dot.
    The stage `notifier` is installed if there are any."""
    defaults: tuple[NotificationDefault, ...] = ()
    """Rules for jobs without a `notify` of their own. The first that fits a job holds."""
    public_url: Annotated[str, AfterValidator(_page)] | None = None
    """The URL of the pages to which messages link: `/executions/<id>` or `/jobs/<name>` is added.

    Null: the console, if `server.public_url` is set; else messages have no links."""
    group_window: Patience = 5.0
    """Time for which notifications of a channel are gathered into one message; `0s`: none."""
    max_age: Duration = 2_592_000.0
    """Time for which notifications are kept."""
    max_bytes: int = Field(default=67_108_864, ge=1_048_576)
    """Size of the stream of notifications, from which on it drops the oldest."""

    @model_validator(mode="after")
    def _knows_its_channels(self) -> Self:
        for number, default in enumerate(self.defaults):
            for channel in default.notify.channels:
                if channel not in self.channels:
                    known = ", ".join(f"`{name}`" for name in sorted(self.channels)) or "none"
                    raise ValueError(
                        f"`defaults[{number}].notify.channels`: there is no channel `{channel}`, but {known}"
                    )
        return self
