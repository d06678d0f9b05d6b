"""The Jobs, pods and logs of the double, and its controller of Jobs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def stamped(body: dict[str, Any], version: int) -> dict[str, Any]:
    """Return an object as the server keeps it."""
    metadata = {**body["metadata"], "uid": str(uuid4()), "creationTimestamp": now(), "resourceVersion": str(version)}
    return {**body, "metadata": metadata}


class Log:
    """The log of one container."""

    def __init__(self) -> None:
        self.has_begun = False
        self.is_closed = False
        self._lines: list[tuple[str, bytes]] = []
        self._changed = asyncio.Event()

    def write(self, *lines: bytes, stamp: str | None = None) -> None:
        """Write lines, at a time that the clock of the node shows."""
        for line in lines:
            if stamp is not None:
                self._lines.append((stamp, line))
                continue
            # Each line has a time of its own, as the clock of a node gives it in nanoseconds.
            time = f"{now()[:-4]}{len(self._lines) % 1000:03}Z"
            self._lines.append((max(time, self._lines[-1][0]) if self._lines else time, line))
        self._wake()

    def close(self) -> None:
        self.is_closed = True
        self._wake()

    async def lines(self, since: str, *, follow: bool) -> AsyncIterator[bytes]:
        position = 0
        while True:
            while position < len(self._lines):
                stamp, line = self._lines[position]
                position += 1
                if stamp >= since:
                    yield stamp.encode() + b" " + line + b"\n"
            if self.is_closed or not follow:
                return
            await self._changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Store:
    """The objects of the cluster.

    A test plays the node, by the methods that change a pod.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, Log] = {}
        self.created: list[str] = []
        """The names of all Jobs that were ever created."""
        self.deleted: list[str] = []
        self.version = 1
        self.on_pod: Callable[[str], None] = lambda _: None
        """Called with each new pod; it may run it at once."""
        self.makes_pods = True
        self.holds_deletion = False
        """Deleted Jobs stay until `release`."""
        self._changed = asyncio.Event()

    def next_version(self) -> int:
        self.version += 1
        return self.version

    def touch(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changed_after(self, version: int, timeout: float) -> None:  # noqa: ASYNC109 - of a watch
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.version <= version:
                    await self._changed.wait()

    async def until(self, happened: Callable[[], object]) -> None:
        """Wait until a change makes a condition true."""
        async with asyncio.timeout(60):
            while not happened():
                await self._changed.wait()

    def add_job(self, body: dict[str, Any]) -> dict[str, Any]:
        job = stamped(body, self.next_version()) | {"status": {}}
        name = job["metadata"]["name"]
        self.jobs[name] = job
        self.created.append(name)
        if self.makes_pods:
            self._add_pod(job)
        self.touch()
        return job

    def _add_pod(self, job: dict[str, Any]) -> None:
        template, metadata = job["spec"]["template"], job["metadata"]
        name = f"{metadata['name']}-{len(self.pods):05}"
        labels = {**template["metadata"]["labels"], "batch.kubernetes.io/controller-uid": metadata["uid"]}
        pod = {
            "metadata": {"name": name, "namespace": metadata["namespace"], "labels": labels},
            "spec": template["spec"],
        }
        self.pods[name] = stamped(pod, self.next_version()) | {"status": {"phase": "Pending"}}
        self.logs[name] = Log()
        self.on_pod(name)

    def wait(self, pod: str, reason: str, message: str = "") -> None:
        """Let the container of a pod wait for a reason."""
        self._set(pod, "Pending", {"waiting": {"reason": reason, "message": message}})

    def unschedulable(self, pod: str, message: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self._status(pod, {"phase": "Pending", "conditions": [condition]})

    def run(self, pod: str) -> None:
        self.logs[pod].has_begun = True
        self._set(pod, "Running", {"running": {"startedAt": now()}})

    def finish(
        self,
        pod: str,
        exit_code: int = 0,
        *,
        reason: str | None = None,
        message: str = "",
        lines: tuple[bytes, ...] = (),
    ) -> None:
        """Run a pod to its end."""
        self.run(pod)
        self.logs[pod].write(*lines)
        self.logs[pod].close()
        terminated = {"exitCode": exit_code, "reason": reason or ("Error" if exit_code else "Completed")}
        terminated["message"] = message
        self._set(pod, "Failed" if exit_code else "Succeeded", {"terminated": terminated})
        self._finish_job(pod, "Failed" if exit_code else "Complete", "BackoffLimitExceeded" if exit_code else "")

    def evict(self, pod: str) -> None:
        self.logs[pod].close()
        self._status(pod, {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."})
        self._finish_job(pod, "Failed", "BackoffLimitExceeded")

    def lose(self, pod: str, reason: str) -> None:
        """Remove a pod, and let its Job fail."""
        self.logs[pod].close()
        self._finish_job(pod, "Failed", reason)
        del self.pods[pod]
        self.next_version()
        self.touch()

    def delete(self, name: str) -> None:
        self.deleted.append(name)
        self.jobs[name]["metadata"]["deletionTimestamp"] = now()
        self.touch()
        if not self.holds_deletion:
            self.release(name)

    def release(self, name: str) -> None:
        """Remove a deleted Job, with all that it owns."""
        uid = self.jobs.pop(name)["metadata"]["uid"]
        for pod in [p for p, each in self.pods.items() if uid in each["metadata"]["labels"].values()]:
            self.logs[pod].close()
            del self.pods[pod]
        self.secrets = {
            key: each for key, each in self.secrets.items() if each["metadata"]["ownerReferences"][0]["uid"] != uid
        }
        self.next_version()
        self.touch()

    def _finish_job(self, pod: str, kind: str, reason: str) -> None:
        uid = self.pods[pod]["metadata"]["labels"]["batch.kubernetes.io/controller-uid"]
        job = next(each for each in self.jobs.values() if each["metadata"]["uid"] == uid)
        job["status"] = {"conditions": [{"type": kind, "status": "True", "reason": reason}]}

    def _set(self, pod: str, phase: str, state: dict[str, Any]) -> None:
        name = self.pods[pod]["spec"]["containers"][0]["name"]
        self._status(pod, {"phase": phase, "containerStatuses": [{"name": name, "state": state}]})

    def _status(self, pod: str, status: dict[str, Any]) -> None:
        self.pods[pod]["status"] = status
        self.pods[pod]["metadata"]["resourceVersion"] = str(self.next_version())
        self.touch()
