"""A real server that speaks the S3 protocol: moto's, in a process of its own.

It keeps everything in memory, checks policies if a test says so, and knows conditional writes, storage classes, encryption and pages of listings.
"""

import json
import os
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import boto3

from tests.databases import HOST, READY_WITHIN, Server, folder_of
from tests.ports import free_port
from tocsin.settings.s3 import S3

KEY: Final = "test-access-key"
SECRET: Final = "test-secret-key"  # noqa: S105 - it guards nothing
REGION: Final = "eu-central-1"
_numbers: Final = count(1)


class S3Server(Server):
    """A server without a bucket at first."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        super().__init__([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)], folder, port)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        super().start()
        deadline = time.monotonic() + READY_WITHIN
        while True:
            try:
                socket.create_connection((HOST, self.port), 1.0).close()
                return
            except OSError:
                assert time.monotonic() < deadline, self.log
                time.sleep(0.05)

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://{HOST}:{self.port}"

    def settings(self, **more: object) -> S3:
        """Settings with which it lets everybody in."""
        return S3.model_validate(self.section(**more))

    def section(self, **more: object) -> dict[str, Any]:
        """The same as a section of the settings."""
        own = {"endpoint": self.url, "region": REGION, "access_key_id": KEY, "secret_access_key": SECRET}
        return {**own, "timeout": 10, "retry_timeout": 10, **more}

    def client(self, service: str = "s3") -> Any:  # noqa: ANN401 - boto3 makes its types when it runs
        """A client of another maker, which looks at what was stored."""
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def new_bucket(self, **more: object) -> str:
        """The name of a new bucket."""
        name = f"bucket-{os.getpid()}-{next(_numbers)}"
        self.client().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION}, **more)
        return name

    def objects(self, bucket: str, prefix: str = "") -> list[str]:
        """The keys in a bucket."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it answer nothing within the block."""
        os.kill(self._pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._pid, signal.SIGCONT)

    @contextmanager
    def user(self, *statements: Mapping[str, Any]) -> Iterator[dict[str, str]]:
        """Check policies within the block; yield the credentials of a user with one."""
        name = f"user-{next(_numbers)}"
        iam = self.client("iam")
        iam.create_user(UserName=name)
        policy = {"Version": "2012-10-17", "Statement": [*statements]}
        iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName=name)["AccessKey"]
        self._check_policies_after(0)
        try:
            yield {"access_key_id": key["AccessKeyId"], "secret_access_key": key["SecretAccessKey"]}
        finally:
            self._check_policies_after(1_000_000_000)

    def _check_policies_after(self, requests: int) -> None:
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.url}/moto-api/reset-auth", str(requests).encode(), {"Content-Type": "text/plain"}, method="POST"
        )
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - our own server


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server."""
    with folder_of(None, "tocsin-s3-") as folder:
        server = S3Server(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
