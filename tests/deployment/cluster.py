"""The workloads of manifests as processes that the controllers of a cluster would start, restart and replace."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import httpx
import trustme
from prometheus_client.parser import text_string_to_metric_families

from tests.databases import folder_of
from tests.deployment.image import unprivileged
from tests.deployment.manifests import WORKLOADS, Object, of_kind, secret_keys, selects, template
from tests.deployment.pod import Objects, Pod

PATIENCE: Final = 600.0
"""Seconds after which a test gives up, on a machine that others use too."""
RESTARTS: Final = 150
"""Starts of one container after which it will never come up."""


class Cluster:
    """The pods of some manifests."""

    def __init__(self, folder: Path, documents: Sequence[Object]) -> None:
        self.folder = folder
        self.pods: dict[str, Pod] = {}
        self.completed: set[str] = set()
        self.terminated: list[Pod] = []
        """Pods that a newer pod replaced."""
        self._addresses = 0
        self._network = f"127.{random.randrange(16, 250)}.{random.randrange(256)}"  # noqa: S311 - keeps tests apart
        self._documents = documents
        self.objects = Objects(
            _config_maps(documents),
            _secrets(documents),
        )
        for workload in of_kind(documents, *WORKLOADS):
            self._add(workload)
        for service in of_kind(documents, "Service"):
            self._name(service)
        self.objects.secrets = {**self.objects.secrets, **self._certificates()}

    def of(self, *components: str) -> list[Pod]:
        """Return the pods of some components."""
        return [
            pod
            for pod in self.pods.values()
            if pod.template["metadata"]["labels"]["app.kubernetes.io/component"] in components
        ]

    def lasting(self) -> list[Pod]:
        """Return the pods of Deployments and StatefulSets."""
        return [pod for pod in self.pods.values() if not _is_job(pod)]

    def start(self) -> None:
        """Start every pod at the same time, as `kubectl apply` does."""
        for pod in self.pods.values():
            pod.start()

    async def until(self, happened: Callable[[], Awaitable[bool]]) -> None:
        """Wait, and meanwhile start ended containers again."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not await happened():
                    self._restart_ended()
                    await asyncio.sleep(0.5)
        except TimeoutError:
            last = [
                f"== {pod.name} ({pod.exit_code}, {pod.starts} starts)\n{pod.said[-1_500:]}"
                for pod in self.pods.values()
            ]
            raise AssertionError("\n".join([f"it did not happen within {PATIENCE} s", *last])) from None

    async def ready(self) -> None:
        """Wait until every Job is complete, and each other pod ready by its probes."""

        async def are_ready() -> bool:
            self._restart_ended()
            if not all(pod.name in self.completed for pod in self.pods.values() if _is_job(pod)):
                return False
            return all(await asyncio.gather(*(pod.is_ready() for pod in self.lasting())))

        await self.until(are_ready)
        assert all(await asyncio.gather(*(pod.probe("livenessProbe") for pod in self.lasting())))

    async def roll(self, documents: Sequence[Object], *, surges: bool = True) -> None:
        """Apply changed manifests: the controllers replace the pods whose template differs, all controllers at the same time.

        Without `surges`, a container ends before its successor starts, as with compose.
        """
        self._documents = documents
        self.objects.config_maps = _config_maps(documents)
        rolls = []
        named = {workload["metadata"]["name"] for workload in of_kind(documents, *WORKLOADS)}
        self.pods = {name: pod for name, pod in self.pods.items() if name.rpartition("-")[0] in named}
        for workload in of_kind(documents, *WORKLOADS):
            name, pods = workload["metadata"]["name"], self._of_workload(workload["metadata"]["name"])
            if workload["kind"] == "Job" and not pods:
                self._add(workload)
                self.pods[f"{name}-0"].start()
            elif pods and pods[0].template != template(workload):
                in_place = workload["kind"] == "StatefulSet" or not surges
                replace = self._replace_in_place if in_place else self._replace_with_surge
                rolls.append(replace(workload, pods))
        assert rolls
        await asyncio.gather(*rolls)
        await self.ready()

    async def _replace_with_surge(self, deployment: Object, pods: Sequence[Pod]) -> None:
        """Start a pod, and end one only when that is ready: at two replicas, 25 % allow one more and none less."""
        assert "strategy" not in deployment["spec"]
        for number, old in enumerate(pods):
            name = f"{deployment['metadata']['name']}-{len(pods) + number}"
            new = Pod(name, self._address(), template(deployment), self.objects, self.folder / name)
            self.pods[name] = new
            new.start()
            await self._until_ready(new)
            del self.pods[old.name]  # its controller does not restart it
            await old.terminate()
            self.terminated.append(old)

    async def _replace_in_place(self, workload: Object, pods: Sequence[Pod]) -> None:
        """End the pod with the highest number, and start it again with its claims, before the next."""
        for pod in reversed(pods):
            del self.pods[pod.name]
            await pod.terminate()
            pod.template = template(workload)
            self.pods[pod.name] = pod
            pod.start()
            await self._until_ready(pod)

    async def _until_ready(self, pod: Pod) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await pod.is_ready():
                self._restart_ended()
                await asyncio.sleep(0.5)

    def _of_workload(self, name: str) -> list[Pod]:
        return [pod for key, pod in self.pods.items() if key.rpartition("-")[0] == name]

    def _address(self) -> str:
        self._addresses += 1
        return f"{self._network}.{self._addresses}"

    async def scraped(self) -> dict[str, set[str]]:
        """Return the names of the metrics of each annotated pod."""
        found: dict[str, set[str]] = {}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            for pod in self.lasting():
                annotations = pod.template["metadata"].get("annotations", {})
                if annotations.get("prometheus.io/scrape") == "true":
                    port, path = annotations["prometheus.io/port"], annotations["prometheus.io/path"]
                    answer = (await client.get(f"http://{pod.address}:{port}{path}")).raise_for_status()
                    found[pod.name] = {family.name for family in text_string_to_metric_families(answer.text)}
        return found

    def end(self) -> None:
        """Kill everything."""
        for pod in self.pods.values():
            pod.kill()

    def _restart_ended(self) -> None:
        for pod in self.pods.values():
            if pod.exit_code is None or pod.name in self.completed:
                continue
            pod.join()
            if _is_job(pod) and pod.exit_code == 0:
                self.completed.add(pod.name)
                continue
            assert pod.starts < RESTARTS, pod.said[-2_000:]
            pod.start()

    def _add(self, workload: Object) -> None:
        name, spec = workload["metadata"]["name"], workload["spec"]
        claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())]
        for number in range(spec.get("replicas", 1)):
            pod_name = f"{name}-{number}"
            address = self._address()
            self.pods[pod_name] = Pod(
                pod_name, address, template(workload), self.objects, self.folder / pod_name, claims
            )
            if workload["kind"] == "StatefulSet":
                self.objects.hosts[f"{pod_name}.{spec['serviceName']}"] = address

    def _name(self, service: Object) -> None:
        """Let a Service lead to its first pod."""
        selector = {"matchLabels": service["spec"]["selector"]}
        first = next(pod for pod in self.pods.values() if selects(selector, pod.template["metadata"]["labels"]))
        self.objects.hosts[service["metadata"]["name"]] = first.address

    def _certificates(self) -> dict[str, dict[str, str]]:
        """Return the Secrets with the certificate of the NATS servers."""
        authority = trustme.CA()
        issued = authority.issue_cert(*(str(ip_address(pod.address)) for pod in self.of("nats")), "localhost")
        files = {
            "ca.crt": authority.cert_pem.bytes().decode(),
            "tls.crt": issued.cert_chain_pems[0].bytes().decode(),
            "tls.key": issued.private_key_pem.bytes().decode(),
        }
        return {
            volume["secret"]["secretName"]: files
            for workload in of_kind(self._documents, *WORKLOADS)
            for volume in template(workload)["spec"].get("volumes", ())
            if "secret" in volume
        }


@asynccontextmanager
async def cluster(
    documents: Sequence[Object], prepare: Callable[[Cluster], None] = lambda _: None
) -> AsyncIterator[Cluster]:
    """Start the pods of manifests; they end with the block. `prepare` adds what the manifests expect elsewhere."""
    with folder_of(unprivileged(), "tocsin-pods-") as folder:
        started = Cluster(folder, documents)
        prepare(started)
        try:
            started.start()
            yield started
        finally:
            started.end()


def _config_maps(documents: Sequence[Object]) -> dict[str, dict[str, str]]:
    return {document["metadata"]["name"]: document["data"] for document in of_kind(documents, "ConfigMap")}


def _secrets(documents: Sequence[Object]) -> dict[str, dict[str, str]]:
    """Return the Secrets that variables refer to, each with random texts."""
    made: dict[str, dict[str, str]] = {}
    for name, key in secret_keys(documents):
        made.setdefault(name, {}).setdefault(key, f"p{secrets.token_hex(20)}")
    return made


def _is_job(pod: Pod) -> bool:
    return "restartPolicy" in pod.template["spec"]
