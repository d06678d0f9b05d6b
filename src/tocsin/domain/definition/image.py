"""The names of container images."""

import re
from dataclasses import dataclass
from typing import Final

from ..errors import TocsinError

MAX_IMAGE: Final = 512
_HOST: Final = r"(?:[a-z0-9](?:[a-z0-9\-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9\-]*[a-z0-9])?)*)(?::[0-9]{1,5})?"
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(rf"(?:(?P<host>{_HOST})/)?(?P<path>{_PART}(?:/{_PART})*)")
_IMAGE: Final = re.compile(
    r"(?P<repository>[^@]+?)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_DEFAULT_HOST: Final = "docker.io"


class ImageError(TocsinError, ValueError):
    """A text that is not the name of an image."""

    code = "invalid-image"


@dataclass(frozen=True, slots=True)
class Image:
    """An image by its whole name."""

    repository: str
    """The host and the path, such as `docker.io/library/busybox`."""
    tag: str | None
    digest: str | None

    def __str__(self) -> str:
        """Return the name that each container runtime reads in one way."""
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}@{self.digest}" if self.digest else f"{self.repository}{tag}"


def read_image(text: str) -> Image:
    """Return the image that a name means; raise ImageError for another text."""
    match_ = _IMAGE.fullmatch(text) if len(text) <= MAX_IMAGE else None
    repository = _repository(match_["repository"]) if match_ else None
    if match_ is None or repository is None:
        raise ImageError(
            "the name of an image is HOST/PATH:TAG or HOST/PATH@sha256:DIGEST, such as registry.example.com/etl:1.4"
        )
    return Image(repository, match_["tag"], match_["digest"])


def _repository(text: str) -> str | None:
    if _REPOSITORY.fullmatch(text) is None:
        return None
    first, slash, rest = text.partition("/")
    if slash and _is_host(first):
        return f"{first}/library/{rest}" if first == _DEFAULT_HOST and "/" not in rest else text
    if ":" in text:
        return None
    return f"{_DEFAULT_HOST}/{text}" if slash else f"{_DEFAULT_HOST}/library/{text}"


def read_pattern(text: str) -> Image:
    """Return what an entry of an allow-list covers.

    `HOST/` and `HOST/PATH/` cover all images below, and others are images.

    Raises:
        ImageError: it is neither, or may be a registry as well as an image.
    """
    begin = text.removesuffix("/")
    if begin != text and re.fullmatch(rf"{_HOST}(?:/{_PART})*", begin) and _is_host(begin.partition("/")[0]):
        return Image(begin, None, None)
    if _is_host(text) and re.fullmatch(_HOST, text):
        raise ImageError(f"`{text}` may be a registry or an image: write `{text}/` or `docker.io/library/{text}`")
    return read_image(text)


def covers(pattern: Image, image: Image) -> bool:
    """Return whether an entry of an allow-list covers an image.

    A digest decides which image runs, and not the tag before it.
    """
    if pattern.digest is not None:
        return (pattern.repository, pattern.digest) == (image.repository, image.digest)
    if pattern.tag is not None:
        return image == pattern
    return image.repository == pattern.repository or image.repository.startswith(f"{pattern.repository}/")


def _is_host(text: str) -> bool:
    return "." in text or ":" in text or text == "localhost"
