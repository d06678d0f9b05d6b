"""The certificates of authorities that a channel trusts."""

import ssl

import httpx

from ...domain.definition import DefinitionProblem
from ...settings import SettingsError


def trusted(ca_file: str | None, channel: str) -> ssl.SSLContext:
    """Trust the public authorities, and those of a file beside them.

    Raises:
        SettingsError: the file has no readable certificates.
    """
    context = httpx.create_ssl_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            field = f"notifications.channels.{channel}.ca_file"
            problem = DefinitionProblem(
                f"no readable certificates: {error}", field=field, value=ca_file, code="file-unreadable"
            )
            raise SettingsError(problem) from None
    return context
