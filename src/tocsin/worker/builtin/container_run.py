"""A Job of Kubernetes from its start to its end.

The Job of an attempt has one name. So a worker that gets the attempt again, after another died or stopped, follows the Job that is
there, and reads its result if it has ended. A later attempt begins after the Jobs of earlier attempts are gone.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from ...telemetry import get_logger
from ..builtin_call import BuiltinCall, BuiltinFailure
from ..output import LINES_PER_ATTEMPT
from .cluster import ALREADY_EXISTS, FORBIDDEN, MAX_REASON, NOT_FOUND, UNREACHABLE, Cluster, Refusal
from .container_job import (
    ATTEMPT,
    WORK,
    Order,
    container_name,
    is_own,
    job_manifest,
    job_name,
    secret_manifest,
    work_digest,
)
from .lines import MAX_LINE_BYTES, Lines
from .pod_status import (
    NO_POD,
    STUCK,
    End,
    Status,
    is_deleted,
    is_finished,
    items_of,
    part_of,
    read_status,
    uid_of,
)

_STAMP: Final = re.compile(
    rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9:]{5})"
)
_MAX_STAMP: Final = 64
_PAUSE_S: Final = 1.0
_FAILURES: Final = 10
"""Tries that may fail after the end of the container."""
_HANGING_S: Final = 2.0
"""Seconds in which the connection of a log that grows no more closes."""
_REST_WITHIN_S: Final = 30.0
"""Seconds for the rest of a log after the end of the container."""


class PodLog:
    """The log of one container."""

    def __init__(self, cluster: Cluster, path: str, container: str, lines: Lines) -> None:
        """Pass what `path` shows on to `lines`."""
        self._cluster = cluster
        self._path = path
        self._container = container
        self._lines = lines
        self._line = bytearray()
        self._last = b""
        """The time of the last whole line."""
        self._known = b""
        """The time up to which this connection repeats known lines."""
        self.has_ended = asyncio.Event()
        """Set by the reader of the pod's status: the log grows no more."""
        self.problem: BuiltinFailure | None = None
        """The reason why the end of the log is missing."""

    async def follow(self) -> None:
        """Read the log until its end, or until it cannot be read."""
        failures = 0
        try:
            while failures < _FAILURES:
                is_last = self.has_ended.is_set()
                try:
                    await (self._read(is_last=True) if is_last else self._read_until_end())
                    failures, self.problem = 0, None
                    if is_last:
                        return
                except BuiltinFailure as failure:
                    self.problem = failure
                    if isinstance(failure, Refusal) and failure.status == FORBIDDEN:
                        return
                    failures += is_last
                await self._pause()
        finally:
            self._lines.close()

    async def _read_until_end(self) -> None:
        """Read while the log grows; a connection that hangs is left soon after the end."""
        reading = asyncio.create_task(self._read(is_last=False))
        ending = asyncio.create_task(self.has_ended.wait())
        try:
            await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([reading], timeout=_HANGING_S)
        finally:
            ending.cancel()
            reading.cancel()
            await asyncio.gather(ending, reading, return_exceptions=True)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            raise error

    async def _read(self, *, is_last: bool) -> None:
        self._line.clear()
        self._known = self._last
        query = {"container": self._container, "timestamps": "true"}
        if not is_last:
            query["follow"] = "true"
        if self._last:
            query["sinceTime"] = self._last.decode()
        elif is_last:
            query["tailLines"] = str(LINES_PER_ATTEMPT)
        within = _REST_WITHIN_S if is_last else None
        async with self._cluster.stream(self._path, within=within, **query) as parts:
            async for part in parts:
                self._feed(part)
                self._lines.flush()
        if self._line and is_last:  # otherwise a server that stops has cut it, and the next connection has the whole
            self._end_line()

    async def _pause(self) -> None:
        if self.has_ended.is_set():
            await asyncio.sleep(_PAUSE_S)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):
                    await self.has_ended.wait()

    def _feed(self, part: bytes) -> None:
        *ends, rest = part.split(b"\n")
        for end in ends:
            self._extend(end)
            self._end_line()
        self._extend(rest)

    def _extend(self, part: bytes) -> None:
        self._line += part[: MAX_LINE_BYTES + _MAX_STAMP - len(self._line)]

    def _end_line(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        stamp, _, text = line.partition(b" ")
        if not _STAMP.fullmatch(stamp):
            text = line  # the node says why it has no log
        elif stamp <= self._known:
            return
        else:
            self._known, self._last = b"", stamp
        self._lines.feed(text + b"\n")


NAME_TAKEN: Final = "container_name_taken"
JOB_DELETED: Final = "container_job_deleted"
NOT_STARTED: Final = "container_not_started"
NOT_ENDED: Final = "container_not_ended"
_WATCH_S: Final = 10
"""Seconds after which the status is read again although no change was seen."""
_TURN_S: Final = 0.2
"""The shortest time between two readings."""
_DELETE_WITHIN_S: Final = 15.0
"""Seconds for a deletion, beside the grace of the container."""
_SETTLE_S: Final = 5.0
"""Seconds for a creation that is under way when the attempt is cancelled."""
_LOG_WITHIN_S: Final = 60.0
_CREATIONS: Final = 3

_OF_OTHERS: Final = frozenset({NAME_TAKEN, NOT_ENDED})
"""Failures before this attempt has a Job, so that there is nothing to delete."""

_log: Final = get_logger("tocsin.worker")


class ContainerRun:
    """One attempt of a container."""

    def __init__(self, cluster: Cluster, order: Order, call: BuiltinCall, *, start_within: float, keep: float) -> None:
        """Start nothing yet. `start_within` and `keep`: as in the settings."""
        self._cluster = cluster
        self._order = order
        self._call = call
        self._start_within = start_within
        self._keep = keep
        self._delete_within = order.work.grace + _DELETE_WITHIN_S
        self._name = job_name(call.context)
        self._jobs = f"/apis/batch/v1/namespaces/{order.namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{order.namespace}/pods"
        self._secrets = f"/api/v1/namespaces/{order.namespace}/secrets"
        self._container = container_name(order.template)
        self._shown = ""
        self.log: PodLog | None = None
        """The log, once the container has begun."""

    async def end(self, out: Lines) -> End:
        """Run the container, and return its end; its log goes to `out`.

        If this is cancelled, the Job is deleted, unless another worker continues the attempt.
        """
        starting = asyncio.create_task(self._start())
        try:
            job = await asyncio.shield(starting)
            return await self._follow(job, out)
        except asyncio.CancelledError:
            if not self._call.is_handed_back():
                await self._settle(starting)
                await self._discard()
            raise
        except BuiltinFailure as failure:
            if failure.kind not in _OF_OTHERS:
                await self._discard()
            raise
        finally:
            starting.cancel()

    async def _start(self) -> dict[str, Any]:
        if self._call.context.attempt > 1:
            await self._end_earlier_attempts()
        job = await self._created()
        if self._order.secrets:
            try:
                await self._cluster.create(self._secrets, secret_manifest(self._order, job))
            except Refusal as refusal:
                if refusal.reason != ALREADY_EXISTS:
                    raise
        return job

    async def _created(self) -> dict[str, Any]:
        """Create the Job, or return the Job of an earlier delivery of the attempt."""
        call = self._call
        manifest = job_manifest(self._order, call.context, timeout=call.timeout, keep=self._keep)
        for _ in range(_CREATIONS):
            try:
                return await self._cluster.create(self._jobs, manifest)
            except Refusal as refusal:
                if refusal.reason != ALREADY_EXISTS:
                    raise
            if job := await self._job():  # otherwise it went between the two requests
                return self._adopted(job)
        raise BuiltinFailure(JOB_DELETED, f"Job {self._name} is created and deleted again and again")

    async def _job(self) -> dict[str, Any]:
        """Return the Job; empty if it does not exist."""
        try:
            return await self._cluster.get(f"{self._jobs}/{self._name}")
        except Refusal as refusal:
            if refusal.status != NOT_FOUND:
                raise
            return {}

    def _adopted(self, job: dict[str, Any]) -> dict[str, Any]:
        if not is_own(job, self._call.context):
            message = f"Job {self._name} is not of this attempt; delete it, or keep others from creating Jobs here"
            raise BuiltinFailure(NAME_TAKEN, message)
        if is_deleted(job):
            raise BuiltinFailure(JOB_DELETED, f"Job {self._name} of this attempt is being deleted")
        self._call.output.line("info", f"following Job {self._name}, which this attempt has already started")
        return job

    async def _end_earlier_attempts(self) -> None:
        context = self._call.context
        listed = await self._cluster.get(self._jobs, labelSelector=f"{WORK}={work_digest(context)}")
        for job in items_of(listed, "items"):
            metadata = part_of(job, "metadata")
            attempt, name = str(part_of(metadata, "labels").get(ATTEMPT)), str(metadata.get("name"))
            if not attempt.isdecimal() or int(attempt) >= context.attempt or is_finished(job):
                continue
            try:
                async with asyncio.timeout(self._delete_within):
                    await self._delete(name)
            except TimeoutError:
                message = f"Job {name} of attempt {attempt} does not end, so this attempt does not begin"
                raise BuiltinFailure(NOT_ENDED, message) from None

    async def _follow(self, job: Mapping[str, Any], out: Lines) -> End:
        uid, loop = uid_of(job), asyncio.get_running_loop()
        stuck_since: float | None = None
        reading: asyncio.Task[None] | None = None
        try:
            while True:
                status, version = await self._status(uid)
                self._show(status)
                if status.has_begun and self.log is None:
                    self.log = PodLog(self._cluster, f"{self._pods}/{status.pod}/log", self._container, out)
                    reading = asyncio.create_task(self.log.follow())
                if status.end is not None:
                    if self.log is not None and reading is not None:
                        await _read_rest(self.log, reading)
                    return status.end
                is_stuck = status.waits_for == NO_POD or status.waits_for in STUCK
                stuck_since = (stuck_since or loop.time()) if is_stuck else None
                if stuck_since is not None and loop.time() - stuck_since > self._start_within:
                    raise self._not_started(status)
                await self._change(uid, version)
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _status(self, uid: str) -> tuple[Status, str]:
        """Return the status, and the version of the list of pods."""
        job = await self._job()
        if not job or is_deleted(job) or uid_of(job) != uid:
            raise BuiltinFailure(JOB_DELETED, f"Job {self._name} was deleted while it ran")
        pods = await self._cluster.get(self._pods, labelSelector=_selector(uid))
        version = str(part_of(pods, "metadata").get("resourceVersion") or "")
        return read_status(job, items_of(pods, "items"), self._container), version

    async def _change(self, uid: str, version: str) -> None:
        """Wait until a pod may have changed. Events may be lost: the next reading decides."""
        query = {"watch": "true", "labelSelector": _selector(uid), "timeoutSeconds": str(_WATCH_S)}
        begun = asyncio.get_running_loop().time()
        with suppress(BuiltinFailure):
            async with self._cluster.stream(self._pods, within=_WATCH_S + 5, resourceVersion=version, **query) as parts:
                async for _ in parts:
                    await asyncio.sleep(_TURN_S)
                    return
        # A server that closes watches at once is read once a second at most.
        await asyncio.sleep(max(_TURN_S, 1.0 - (asyncio.get_running_loop().time() - begun)))

    def _show(self, status: Status) -> None:
        if status.end is not None:
            return
        if status.has_begun:
            text = f"runs in pod {status.pod}"
        else:
            text = f"{status.waits_for}: {status.message}" if status.message else str(status.waits_for)
        if text != self._shown:
            self._shown = text
            self._call.output.progress(0.0, text)

    def _not_started(self, status: Status) -> BuiltinFailure:
        said = f": {self._call.redact(status.message)[:MAX_REASON]}" if status.message else ""
        message = f"Job {self._name} did not start within {self._start_within:g}s: {status.waits_for}{said}"
        return BuiltinFailure(NOT_STARTED, message, reason=status.waits_for)

    async def _settle(self, starting: "asyncio.Task[dict[str, Any]]") -> None:
        """Await the creation under way. A deletion before its end would delete nothing."""
        await asyncio.wait([starting], timeout=_SETTLE_S)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    async def _discard(self) -> None:
        try:
            async with asyncio.timeout(self._delete_within):
                if is_own(await self._job(), self._call.context):
                    await self._delete(self._name)
            return
        except TimeoutError:
            error = f"it does not end within {self._delete_within:g}s"
        except BuiltinFailure as failure:
            error = str(failure)
        _log.warning("job not deleted", action="container-remains", job=self._name, error=error)

    async def _delete(self, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        try:
            await self._cluster.delete(f"{self._jobs}/{name}", body)
            while True:
                await self._cluster.get(f"{self._jobs}/{name}")
                await asyncio.sleep(_TURN_S)
        except Refusal as refusal:
            if refusal.status != NOT_FOUND:
                raise


async def _read_rest(log: PodLog, reading: "asyncio.Task[None]") -> None:
    log.has_ended.set()
    await asyncio.wait([reading], timeout=_LOG_WITHIN_S)
    if not reading.done() or reading.exception() is not None:
        log.problem = BuiltinFailure(UNREACHABLE, "the end of the log is missing")


def _selector(uid: str) -> str:
    return f"batch.kubernetes.io/controller-uid={uid}"
