"""`tocsin keys`: the key with which the notary signs the ledger and the log."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.text import Text

from ...archive.signing_keys import KeyRefused, PublicKey, SigningKey
from ..runtime.errors import UsageError
from ..runtime.session import Session

K = TypeVar("K", PublicKey, SigningKey)


def create(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of the private key; it must not exist.")],
) -> None:
    """Create the notary's key, and print its public key.

    Name the file in the setting `notary.key` of the notary, and give the public key to the people who verify.

    Example: `tocsin keys create notary.pem > notary.pub`
    """
    key = SigningKey.generate()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(
            f"{file} exists, and a new key would not verify old checkpoints: choose another file", code="key-exists"
        ) from None
    except OSError as error:
        raise unreadable(file, error) from None
    with os.fdopen(descriptor, "w") as out:
        out.write(key.as_pem())
    _answer(session, key.public)


def show(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of the private key.")],
) -> None:
    """Print the public key of a private key.

    Example: `tocsin keys show notary.pem > notary.pub`
    """
    _answer(session, _read(file, SigningKey.from_pem).public)


def public_keys(files: list[Path]) -> list[PublicKey]:
    """Read public keys."""
    return [_read(file, PublicKey.from_pem) for file in files]


def _read(file: Path, from_pem: Callable[[str], K]) -> K:
    try:
        return from_pem(file.read_text())
    except KeyRefused as error:
        raise UsageError(f"{file}: {error}", code=error.code) from None
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(file, error) from None


def unreadable(file: Path, error: OSError | UnicodeDecodeError) -> UsageError:
    """Return the error for a file that cannot be read or written."""
    reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it is not text"
    return UsageError(f"{file}: {reason}; check the path", code="unreadable-file")


def _answer(session: Session, key: PublicKey) -> None:
    pem = key.as_pem()
    session.output.answer({"public_key": pem}, lambda: [Text(pem.rstrip())])
