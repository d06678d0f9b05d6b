"""A place in a bucket of S3 or of a compatible store, reached through obstore.

Every method raises `StoreUnavailable` if the store does not answer or refuses. Its text never has a secret: it has what was
requested, the status, and the code and message of the store's answer.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...domain.text import printable
from ...ports import ArchiveUnavailable
from ...ports.errors import StoreUnavailable
from ...settings.s3 import S3, S3Location
from ..extras import ExtraNotInstalled

if TYPE_CHECKING:
    from obstore.store import S3Store


S3_EXTRA: Final = "s3"
PART: Final = 8_388_608
"""Bytes of a part of a large object. A store takes at most 10,000 parts of it, 84 GB."""
PARTS_AT_ONCE: Final = 4
"""Parts that are in memory at the same time."""
MAX_TRIES: Final = 10
MAX_REASON: Final = 300
"""Characters of the reason of a refusal."""
_STATUS: Final = re.compile(r"status code: (\d+ [A-Za-z ]+)")
_CODE: Final = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,1000})</Message>")
_SECRET_NAMES: Final = re.compile(r"(?i)((?:signature|credential|token)(?:=|: ))[^&,\s\"]+")
_MISSING_BUCKET: Final = "NoSuchBucket"


class Bucket:
    """The objects below a prefix of a bucket."""

    def __init__(self, location: S3Location, settings: S3, *, part: str) -> None:
        """`part`: the setting or command that needs it, for the error without the extra."""
        self._location = location
        self._settings = settings
        self._part = part

    def __str__(self) -> str:
        return str(self._location)

    async def create(self, name: str, body: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415 - it needs an extra

        mode: Any = "create"
        if not self._settings.conditional_writes:
            mode = "overwrite"
            if await self.get(name) is not None:
                return False
        with self._reporting("PUT", name):
            try:
                await self._obstore.put_async(
                    self._store, name, body, mode=mode, use_multipart=False, attributes=self._attributes
                )
            except AlreadyExistsError:
                return False
        return True

    async def upload(self, name: str, path: Path) -> None:
        """Store a file, in parts if it is large, and replace an object."""
        with self._reporting("PUT", name):
            await self._obstore.put_async(
                self._store,
                name,
                path,
                attributes=self._attributes,
                chunk_size=PART,
                max_concurrency=PARTS_AT_ONCE,
            )

    async def get(self, name: str) -> bytes | None:
        """Return an object; None: it does not exist."""
        with self._reporting("GET", name):
            try:
                answer = await self._obstore.get_async(self._store, name)
                return bytes(await answer.bytes_async())
            except FileNotFoundError as error:
                _raise_if_no_bucket(error)
                return None

    async def download(self, name: str, path: Path) -> bool:
        """Write an object to a file, a part in each request; return whether it exists.

        So the time limit of a request does not limit the size of the object.
        """
        with self._reporting("GET", name):
            try:
                head = await self._head(name)
            except FileNotFoundError as error:
                _raise_if_no_bucket(error)
                return False
            same = {"if_match": head["e_tag"]} if head["e_tag"] else {}
            with path.open("wb") as file:
                for start in range(0, head["size"], PART):
                    options = {"range": (start, min(start + PART, head["size"])), **same}
                    answer = await self._obstore.get_async(self._store, name, options=options)
                    await asyncio.to_thread(file.write, bytes(await answer.bytes_async()))
        return True

    async def names(self) -> AsyncIterator[str]:
        """Yield the names of all objects, a page of at most 1,000 at a time."""
        with self._reporting("LIST", ""):
            async for page in self._obstore.list(self._store, chunk_size=1_000):
                for found in page:
                    yield found["path"]

    async def remove(self, name: str) -> None:
        with self._reporting("DELETE", name):
            try:
                await self._obstore.delete_async(self._store, name)
            except FileNotFoundError as error:
                _raise_if_no_bucket(error)

    async def _head(self, name: str) -> Any:  # noqa: ANN401 - a type that exists for type checkers only
        """Return the size and tag of an object; GET has reasons of refusals."""
        try:
            return await self._obstore.head_async(self._store, name)
        except Exception as error:
            if isinstance(error, FileNotFoundError) or _STATUS.search(str(error)):
                await self._obstore.get_async(self._store, name, options={"range": (0, 1)})
            raise

    @property
    def _attributes(self) -> Any:  # noqa: ANN401 - a type that exists for type checkers only
        storage_class = self._settings.storage_class
        return None if storage_class is None else {"Storage-Class": storage_class}

    @property
    def _obstore(self) -> Any:  # noqa: ANN401 - the module
        try:
            import obstore  # noqa: PLC0415 - it needs an extra
        except ImportError:
            raise ExtraNotInstalled(self._part, S3_EXTRA) from None
        return obstore

    @cached_property
    def _store(self) -> "S3Store":
        from obstore.store import S3Store  # noqa: PLC0415 - it needs an extra

        settings = self._settings
        options: dict[str, Any] = {
            "endpoint": settings.host_endpoint(self._location.bucket),
            "region": settings.region,
            "access_key_id": settings.access_key_id,
            "secret_access_key": settings.secret_access_key and settings.secret_access_key.get_secret_value(),
            "session_token": settings.session_token and settings.session_token.get_secret_value(),
            "server_side_encryption": settings.encryption,
            "sse_kms_key_id": settings.kms_key,
            "checksum_algorithm": "SHA256" if settings.checksums else None,
        }
        client: dict[str, Any] = {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=min(settings.timeout, 5.0)),
            "timeout": timedelta(seconds=settings.timeout),
            "user_agent": "tocsin",
        }
        if settings.ca is not None:
            try:
                client["root_certificate"] = settings.ca.read_bytes()
            except OSError as error:
                raise StoreUnavailable(f"{settings.ca}: {(error.strerror or str(error)).lower()}") from None
        return S3Store(
            self._location.bucket,
            prefix=self._location.prefix or None,
            virtual_hosted_style_request=not settings.path_style,
            client_options=client,  # type: ignore[arg-type]
            retry_config={"max_retries": MAX_TRIES, "retry_timeout": timedelta(seconds=settings.retry_timeout)},
            **{name: value for name, value in options.items() if value is not None},
        )

    @contextmanager
    def _reporting(self, verb: str, name: str) -> Iterator[None]:
        """Turn errors of the client into `StoreUnavailable`."""
        try:
            yield
        except Exception as error:
            if not type(error).__module__.startswith("obstore") and not isinstance(
                error, FileNotFoundError | ValueError
            ):
                raise
            where = f"{self._location}{'/' if name else ''}{name}"
            raise StoreUnavailable(f"{verb} {where}: {self._masked(_reason(error))}") from None

    def _masked(self, reason: str) -> str:
        """Return a reason without secrets and control characters; a store may repeat what it received."""
        for secret in (self._settings.secret_access_key, self._settings.session_token):
            if secret is not None and secret.get_secret_value():
                reason = reason.replace(secret.get_secret_value(), "******")
        return printable(_SECRET_NAMES.sub(r"\1******", reason))[:MAX_REASON]


def _raise_if_no_bucket(error: FileNotFoundError) -> None:
    if _MISSING_BUCKET in str(error):
        raise error


def _reason(error: Exception) -> str:
    text = str(error)
    if (code := _CODE.search(text)) is not None:
        message = _MESSAGE.search(text)
        return f"{code[1]}: {' '.join(message[1].split())}" if message else code[1]
    if (status := _STATUS.search(text)) is not None:
        return status[1].strip()
    for sign, meaning in (
        ("kind: Timeout", "no answer in time"),
        ("kind: Connect", "no connection"),
        ("kind: Interrupted", "the connection ended"),
    ):
        if sign in text:
            return meaning
    return " ".join(text.split())


class S3ArchiveStore:
    """Implement `ports.ArchiveStore`. An object is never overwritten: its name holds a part of its digest."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def put(self, name: str, body: bytes) -> None:
        try:
            await self._bucket.create(name, body)
        except StoreUnavailable as error:
            raise ArchiveUnavailable(f"the archive: {error}") from error

    async def get(self, name: str) -> bytes | None:
        try:
            return await self._bucket.get(name)
        except StoreUnavailable as error:
            raise ArchiveUnavailable(f"the archive: {error}") from error
