"""A bucket on a real server: what is written, what is refused, and what an operator reads."""

import asyncio
import json
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.domain.given import NOON
from tests.s3_server import KEY, SECRET, S3Server
from tocsin.adapters.nats.backup.errors import BackupExists
from tocsin.adapters.nats.backup.folder import STARTED
from tocsin.adapters.nats.backup.store import Upload, uploading
from tocsin.adapters.s3.bucket import PART, Bucket, S3ArchiveStore
from tocsin.ports import ArchiveUnavailable, LogUnavailable
from tocsin.ports.errors import StoreUnavailable
from tocsin.settings.s3 import S3, s3_location

PREFIX = "some/where"
PAGE = Path(__file__).parents[2] / "docs/how-to/archive-on-s3.md"
ARCHIVING = "Rights"
READING = "Readers"


def bucket_of(server: S3Server, name: str, **more: object) -> Bucket:
    return Bucket(s3_location(f"s3://{name}/{PREFIX}"), server.settings(**more), part="this test")


@pytest.fixture
def name(s3: S3Server) -> str:
    return s3.new_bucket()


async def test_no_object_is_overwritten(s3: S3Server, name: str) -> None:
    bucket = bucket_of(s3, name)
    assert [await bucket.create("a", body) for body in (b"first", b"second")] == [True, False]
    assert await bucket.get("a") == b"first"


async def test_objects_are_encrypted_and_classed(s3: S3Server, name: str, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (2 * PART + 1))
    key = s3.client("kms").create_key()["KeyMetadata"]["Arn"]
    bucket = bucket_of(s3, name, encryption="aws:kms", kms_key=key, storage_class="STANDARD_IA")
    await bucket.create("small", b"x")
    await bucket.upload("large", tmp_path / "large")
    for part in ("small", "large"):
        head = s3.client().head_object(Bucket=name, Key=f"{PREFIX}/{part}")
        assert (head["ServerSideEncryption"], head["SSEKMSKeyId"], head["StorageClass"]) == (
            *("aws:kms", key),
            "STANDARD_IA",
        )
    assert await bucket.download("large", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "large").read_bytes()


async def test_store_can_check_what_arrived(s3: S3Server, name: str) -> None:
    """Buckets with Object Lock require a checksum."""
    heads = asyncio.Queue[bytes]()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heads.put(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for checksums in (True, False):
            await bucket_of(s3, name, endpoint=endpoint, checksums=checksums).create("a", b"x")
            digest = b"\r\nx-amz-checksum-sha256: " + b64encode(sha256(b"x").digest())
            head = await heads.get()
            assert (digest in head, b"\r\nif-none-match: *" in head) == (checksums, True)


async def test_listing_has_every_page(s3: S3Server, name: str) -> None:
    bucket = bucket_of(s3, name, timeout=60, retry_timeout=60)
    keys = [f"{number:05}" for number in range(1_100)]
    for first in range(0, len(keys), 100):  # all at once, the last would wait for the server longer than the client may
        await asyncio.gather(*(bucket.create(key, b"") for key in keys[first : first + 100]))
    s3.client().put_object(Bucket=name, Key=f"{PREFIX}-beside/z", Body=b"")
    assert [found async for found in bucket.names()] == keys


async def test_download_takes_longer_than_a_request_may(s3: S3Server, name: str, tmp_path: Path) -> None:
    """A large backup comes over a slow line: no answer has more than a part."""
    body = b"0123456789abcdef" * (PART // 8)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        fixed = "etag: x\r\nlast-modified: Thu, 26 Nov 2026 12:00:00 GMT\r\nconnection: close"
        if head.startswith("head"):
            writer.write(f"HTTP/1.1 200 OK\r\n{fixed}\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        elif "range: bytes=" in head:
            first, last = map(int, head.partition("range: bytes=")[2].partition("\r")[0].split("-"))
            span = f"content-range: bytes {first}-{last}/{len(body)}\r\ncontent-length: {last - first + 1}"
            writer.write(f"HTTP/1.1 206 Partial Content\r\n{fixed}\r\n{span}\r\n\r\n".encode())
            writer.write(body[first : min(last + 1, first + PART)])
        else:  # it comes no further within the time of the request
            writer.write(f"HTTP/1.1 200 OK\r\n{fixed}\r\ncontent-length: {len(body)}\r\n\r\n".encode())
            writer.write(body[:PART])
            await asyncio.sleep(60)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await bucket_of(s3, name, endpoint=endpoint, retry_timeout=1).download("large", tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == body


async def test_absent_object_is_not_an_absent_bucket(s3: S3Server, name: str, tmp_path: Path) -> None:
    assert await bucket_of(s3, name).get("absent") is None
    assert not await bucket_of(s3, name).download("absent", tmp_path / "absent")
    with pytest.raises(StoreUnavailable, match=f"GET s3://absent-bucket/{PREFIX}/a: NoSuchBucket"):
        await bucket_of(s3, "absent-bucket").get("a")
    with pytest.raises(StoreUnavailable, match=r"PUT .*NoSuchBucket"):
        await bucket_of(s3, "absent-bucket").create("a", b"")


def policy(name: str, heading: str) -> Sequence[Mapping[str, Any]]:
    """Return the statements of the policy below a heading of docs/how-to/archive-on-s3.md, for a bucket of the test."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {heading}")[2].partition("```json")[2].partition("```")[0]
    statements: Sequence[Mapping[str, Any]] = json.loads(
        text.replace("acme-tocsin/archive", f"{name}/{PREFIX}").replace("acme-tocsin", name)
    )["Statement"]
    return [statement for statement in statements if "kms" not in str(statement)]


async def test_archive_needs_no_right_to_delete(s3: S3Server, name: str) -> None:
    with s3.user(*policy(name, ARCHIVING)) as credentials:
        bucket = bucket_of(s3, name, **credentials)
        store = S3ArchiveStore(bucket)
        await store.put("a", b"x")
        assert (await store.get("a"), await store.get("absent")) == (b"x", None)
        with pytest.raises(StoreUnavailable, match=r"DELETE .*AccessDenied"):
            await bucket.remove("a")


async def test_refusal_names_no_secret(s3: S3Server, name: str, tmp_path: Path) -> None:
    with s3.user(*policy(name, READING)) as credentials:
        store = S3ArchiveStore(bucket_of(s3, name, **credentials))
        with pytest.raises(ArchiveUnavailable, match="AccessDenied") as refused:
            await store.put("a", b"x")
        assert credentials["secret_access_key"] not in str(refused.value)
        wrong = S3ArchiveStore(bucket_of(s3, name, access_key_id="unknown-key", secret_access_key="hidden-secret"))
        with pytest.raises(ArchiveUnavailable) as refused:
            await wrong.put("a", b"x")
        with pytest.raises(StoreUnavailable, match="InvalidAccessKeyId"):
            await bucket_of(s3, name, access_key_id="unknown-key", secret_access_key="x").download("a", tmp_path / "a")
        assert "hidden-secret" not in f"{refused.value!r}{refused.value.__cause__!r}"


async def test_repeated_request_shows_no_secret(s3: S3Server, name: str) -> None:
    """Some stores and proxies answer with the request; the reason reaches logs, NATS and `tocsin doctor`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = b"<Error><Code>Wrong</Code><Message>\x1b[31m" + head.partition(b"\r\n")[2] + b"</Message></Error>"
        writer.write(b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        bucket = bucket_of(s3, name, endpoint=endpoint, session_token="hidden-token")
        with pytest.raises(StoreUnavailable, match=r"Wrong: .*x-amz-security-token") as refused:
            await bucket.get("a")
    assert "hidden-token" not in str(refused.value)
    assert str(refused.value).isprintable()


async def test_absent_store_is_reported_in_time(s3: S3Server, name: str) -> None:
    """A stage waits and reads again, as it does while NATS is away."""
    assert issubclass(ArchiveUnavailable, LogUnavailable)
    with silent_port() as port:
        for endpoint, reason in ((f"http://127.0.0.1:{port}", "no answer in time"), (refusing(), "no connection")):
            settings = {"endpoint": endpoint, "timeout": 0.2, "retry_timeout": 0.5}
            store = S3ArchiveStore(bucket_of(s3, name, **settings))
            for request in (store.get("a"), store.put("a", b"x")):
                began = time.monotonic()
                with pytest.raises(ArchiveUnavailable, match=reason):
                    await request
                assert time.monotonic() - began < 60  # object_store alone would try for three minutes


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def refusing() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_credentials_come_from_the_environment(s3: S3Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3.user(*policy(name, ARCHIVING)) as credentials:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", credentials["access_key_id"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", credentials["secret_access_key"])
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
        bucket = Bucket(s3_location(f"s3://{name}/{PREFIX}"), S3(), part="this test")
        assert await bucket.create("a", b"x")
        assert await bucket.get("a") == b"x"
        other = bucket_of(s3, name, access_key_id=KEY, secret_access_key=SECRET)
        with pytest.raises(StoreUnavailable):  # the settings come first
            await other.get("a")


async def test_authority_of_the_store_is_trusted(s3: S3Server, name: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with encrypted(s3.port, authority) as url:
        assert await bucket_of(s3, name, endpoint=url, ca=tmp_path / "ca.pem").get("a") is None
        with pytest.raises(StoreUnavailable, match="no connection"):
            await bucket_of(s3, name, endpoint=url, retry_timeout=0.1).get("a")
    with pytest.raises(StoreUnavailable, match=r"absent\.pem: no such file"):
        await bucket_of(s3, name, ca=tmp_path / "absent.pem").get("a")


@asynccontextmanager
async def encrypted(port: int, authority: trustme.CA) -> AsyncIterator[str]:
    """A server that speaks TLS for a server that does not."""

    async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while piece := await source.read(65_536):
            target.write(piece)
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, inner_writer), pass_on(inner_reader, writer), return_exceptions=True)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


class Forgetful(Bucket):
    """A bucket whose answer to a conditional write is lost: after a second request the object exists, or the client gives up."""

    gives_up = False

    async def create(self, name: str, body: bytes) -> bool:
        """Store an object, and answer as after a lost answer."""
        await super().create(name, body)
        if self.gives_up:
            raise TimeoutError
        return False


def forgetful(server: S3Server, name: str) -> Forgetful:
    return Forgetful(s3_location(f"s3://{name}/{PREFIX}"), server.settings(), part="this test")


async def test_lost_answer_takes_the_place(s3: S3Server, name: str) -> None:
    upload = Upload(forgetful(s3, name))
    await upload.begin(NOON)
    assert upload.names == [STARTED]
    with pytest.raises(BackupExists):
        await Upload(forgetful(s3, name)).begin(NOON)
    assert [each async for each in bucket_of(s3, name).names()] == [STARTED]


async def test_failed_upload_frees_its_own_place_alone(s3: S3Server, name: str) -> None:
    bucket = forgetful(s3, name)
    bucket.gives_up = True
    with pytest.raises(TimeoutError):
        async with uploading(bucket, NOON):
            pass
    assert [each async for each in bucket.names()] == []
    await bucket_of(s3, name).create(STARTED, b"of another upload")
    with pytest.raises(TimeoutError):
        async with uploading(bucket, NOON):
            pass
    assert await bucket.get(STARTED) == b"of another upload"
