"""The client of an installation for Python programs.

    from tocsin import Client, SyncClient

`Client` is asynchronous, and `SyncClient` has the same methods as blocking calls. Both work over NATS and over the HTTP API.
"""

from .client import Client
from .errors import (
    ClientClosed,
    CountersUnknown,
    InvalidArgument,
    ResultExpired,
    RunCancelled,
    RunFailed,
    RunSkipped,
    RunTimeout,
    WrongContext,
)
from .job_snapshot import JobSnapshot
from .run import Run
from .sync_client import SyncClient, SyncRun

__all__ = [
    "Client",
    "ClientClosed",
    "CountersUnknown",
    "InvalidArgument",
    "JobSnapshot",
    "ResultExpired",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunSkipped",
    "RunTimeout",
    "SyncClient",
    "SyncRun",
    "WrongContext",
]
