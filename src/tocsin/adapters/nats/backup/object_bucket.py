"""A place in an object store of NATS for backups, through nats-py.

Objects are written and read in chunks, as every client of NATS does.
"""

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from nats.errors import Error as NatsError
from nats.js.errors import APIError, BucketNotFoundError, NotFoundError, ObjectDeletedError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from ....ports.errors import StoreUnavailable
from ..client import wire
from ..client.connection import Connection

OBJECT_SCHEME: Final = "nats-object://"
CHUNK: Final = 131_072
"""Bytes of a chunk, as other clients of NATS have them."""
SILENCE_S: Final = 60.0
SLOWEST: Final = 262_144
"""Bytes in a second below which a transfer has failed."""
_ABSENT: Final = (ObjectNotFoundError, ObjectDeletedError, NotFoundError)


class ObjectBucket:
    """The objects below a prefix of an object store."""

    def __init__(self, connection: Connection, bucket: str, prefix: str) -> None:
        """`bucket` must exist: `nats object add BUCKET`."""
        self._jetstream = connection.client.jetstream()
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    def __str__(self) -> str:
        return f"{OBJECT_SCHEME}{self._bucket}/{self._prefix}".removesuffix("/")

    async def create(self, name: str, body: bytes) -> bool:
        """Store a small object unless its name is taken; return whether it was stored."""
        with self._reporting("PUT", name):
            await self._open()
            stream, key = f"OBJ_{self._bucket}", self._prefix + name
            meta = f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(key.encode()).decode()}"
            try:
                newest = await self._jetstream.get_last_msg(stream, meta)
            except NotFoundError:
                guard = 0
            else:
                if not json.loads(newest.data or b"{}").get("deleted"):
                    return False
                guard = newest.seq or 0
            nuid = secrets.token_hex(16)  # nats-py cannot store under a guard
            chunks = [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)]
            for chunk in chunks:
                await self._jetstream.publish(f"$O.{self._bucket}.C.{nuid}", chunk)
            info = {
                "name": key,
                "bucket": self._bucket,
                "nuid": nuid,
                "size": len(body),
                "chunks": len(chunks),
                "mtime": datetime.now(UTC).isoformat(),
                "digest": f"SHA-256={base64.urlsafe_b64encode(sha256(body).digest()).decode()}",
                "options": {"max_chunk_size": CHUNK},
            }
            headers = {"Nats-Rollup": "sub", "Nats-Expected-Last-Subject-Sequence": str(guard)}
            try:
                await self._jetstream.publish(meta, json.dumps(info).encode(), headers=headers)
            except APIError as error:
                if error.err_code not in wire.WRONG_LAST_SEQUENCE:
                    raise
                await self._jetstream.purge_stream(stream, subject=f"$O.{self._bucket}.C.{nuid}")
                return False
        return True

    async def upload(self, name: str, path: Path) -> None:
        with self._reporting("PUT", name), path.open("rb") as file:
            await (await self._open()).put(self._prefix + name, file)

    async def download(self, name: str, path: Path) -> bool:
        with self._reporting("GET", name):
            store = await self._open()
            try:
                info = await store.get_info(self._prefix + name)
            except _ABSENT:
                return False
            with path.open("wb") as file:
                async with asyncio.timeout(SILENCE_S + (info.size or 0) / SLOWEST):
                    await store.get(self._prefix + name, writeinto=file)
        return True

    async def names(self) -> AsyncIterator[str]:
        with self._reporting("LIST", ""):
            store = await self._open()
            try:
                async with asyncio.timeout(SILENCE_S):
                    found = await store.list(ignore_deletes=True)
            except NotFoundError:
                return
        for info in found:
            if info.name.startswith(self._prefix) and not info.deleted:
                yield info.name.removeprefix(self._prefix)

    async def remove(self, name: str) -> None:
        with self._reporting("DELETE", name):
            try:
                await (await self._open()).delete(self._prefix + name)
            except _ABSENT:
                return

    async def _open(self) -> ObjectStore:
        try:
            return await self._jetstream.object_store(self._bucket)
        except BucketNotFoundError:
            raise StoreUnavailable(
                f"there is no object store {self._bucket} in this NATS: create it with `nats object add {self._bucket}`"
            ) from None

    @contextmanager
    def _reporting(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except (NatsError, TimeoutError) as error:
            raise StoreUnavailable(f"{verb} {self}/{name}: {str(error) or type(error).__name__}") from error
