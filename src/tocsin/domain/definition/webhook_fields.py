"""The fields of a trigger whose events are requests to a webhook."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ..secret_reference import SecretReferenceError, find_references, reference
from ..webhook import SignatureScheme
from .errors import DefinitionProblem, show

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
