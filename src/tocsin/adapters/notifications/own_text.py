"""Texts of notifications by the templates of the settings."""

from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import SecretStr

from ... import telemetry
from ...domain.notification import Notification
from ...domain.template import TemplateError

T = TypeVar("T")

_log: Final = telemetry.get_logger("tocsin.notifier")


def by_template(
    template: SecretStr | None,
    notification: Notification,
    render: Callable[[str, Notification], T],
    usual: Callable[[Notification], T],
) -> T:
    """Return a text by a template, or the usual text without a template.

    A template was tried with samples at the start. If it fails with a real notification, this must not be lost.
    """
    if template is None:
        return usual(notification)
    try:
        return render(template.get_secret_value(), notification)
    except TemplateError as error:
        _log.warning(
            "template of a channel failed; the usual text is sent",
            action="notification-template-failed",
            channel=notification.channel,
            job=notification.job,
            notification=notification.id,
            error=str(error),
            **({} if notification.execution_id is None else {"execution_id": notification.execution_id}),
        )
        return usual(notification)
