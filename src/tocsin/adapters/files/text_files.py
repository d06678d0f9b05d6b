"""Text files of users, read with a limit; a problem has its line."""

import re
import sys
from pathlib import Path
from typing import Final

from ...domain.definition import DefinitionError, DefinitionProblem

STDIN: Final = "-"
"""The source name of standard input."""
STDIN_NAME: Final = "standard input"
_CONTROL: Final = re.compile("[\x00-\x08\x0e-\x1f\x7f]")


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a file of at most `most` bytes.

    No more is read, so that a device such as `/dev/zero` is refused too.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError:
        raise _refused(path, "no such file or folder: check the path", code="file-not-found") from None
    except OSError as error:
        raise _refused(path, error.strerror or str(error), code="file-unreadable") from None
    if len(content) > most:
        raise _refused(path, f"larger than {most:,} bytes", code="file-too-large")
    return content


def read_source(source: str, most: int) -> bytes:
    """Return the content of a file, or of standard input (`-`), of at most `most` bytes."""
    if source != STDIN:
        return read_bytes(Path(source), most)
    content = sys.stdin.buffer.read(most + 1)
    if len(content) > most:
        raise _refused(STDIN_NAME, f"larger than {most:,} bytes", code="file-too-large")
    return content


def decoded(content: bytes, source: str) -> str:
    """Return the UTF-8 text of a file."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        reason = f"not UTF-8: byte {error.start + 1} of the file, in line {line}, is no character"
        raise DefinitionError(DefinitionProblem(reason, source=source, code="not-utf8")) from None


def refuse_control_characters(text: str, source: str) -> None:
    """Refuse characters that no text file contains, such as NUL."""
    if found := _CONTROL.search(text):
        line = text.count("\n", 0, found.start()) + 1
        reason = f"the control character U+{ord(found[0]):04X} is not allowed: remove it"
        raise DefinitionError(DefinitionProblem(reason, source=f"{source}:{line}", code="control-character"))


def _refused(source: Path | str, reason: str, *, code: str) -> DefinitionError:
    return DefinitionError(DefinitionProblem(reason, source=str(source), code=code))
