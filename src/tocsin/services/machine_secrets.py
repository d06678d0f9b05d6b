"""The secrets of a machine, which definitions and settings name."""

import os
import stat
from typing import Final

from ..domain.secret_reference import SecretReferenceError, is_file

_LARGEST_SECRET: Final = 65_536
"""Bytes of a secret in a file."""


def read_secret(name: str) -> str | None:
    """Return the value of a variable or a file; None: it does not exist.

    Raises:
        SecretReferenceError: the file cannot be used.
    """
    return _content(name.removeprefix("file:")) if is_file(name) else os.environ.get(name)


def _content(path: str) -> str | None:
    """Return the text of a mounted file; None: it does not exist.

    The last line break is left out. The file is read at each call, so a new version that is mounted counts at once.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - the path is a text
            raise SecretReferenceError(f"`file:{path}` is no file; mount the secret as a file")
        with open(path, "rb") as file:  # noqa: PTH123 - the path is a text
            content = file.read(_LARGEST_SECRET + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SecretReferenceError(f"`file:{path}` cannot be read: {error.strerror}") from None
    if len(content) > _LARGEST_SECRET:
        raise SecretReferenceError(f"`file:{path}` has more than {_LARGEST_SECRET:,} bytes; a secret is smaller")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise SecretReferenceError(f"`file:{path}` is not text in UTF-8; encode the secret as text") from None
    return text.removesuffix("\n").removesuffix("\r")
