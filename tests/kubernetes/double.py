"""The double of an API server."""

import inspect
import json
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import jsonschema
import trustme
import yaml
from aiohttp import ClientConnectionResetError, web
from kubernetes.aio.client import BatchV1Api, CoreV1Api
from multidict import MultiMapping

from .objects import Store, now, stamped

TOKEN: Final = "token-of-the-worker"  # noqa: S105 - of the double
_ROOT: Final = Path(__file__).parents[2]
_DOCUMENT: Final = json.loads(Path(__file__).with_name("openapi-1.37.json").read_text())
_KINDS: Final = {
    "Job": "io.k8s.api.batch.v1.Job",
    "Secret": "io.k8s.api.core.v1.Secret",
    "DeleteOptions": "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
}
_OPERATIONS: Final[Mapping[str, tuple[type, str]]] = {
    "create jobs": (BatchV1Api, "create_namespaced_job"),
    "list jobs": (BatchV1Api, "list_namespaced_job"),
    "get jobs": (BatchV1Api, "read_namespaced_job"),
    "delete jobs": (BatchV1Api, "delete_namespaced_job"),
    "create secrets": (CoreV1Api, "create_namespaced_secret"),
    "list pods": (CoreV1Api, "list_namespaced_pod"),
    "watch pods": (CoreV1Api, "list_namespaced_pod"),
    "get pods/log": (CoreV1Api, "read_namespaced_pod_log"),
}
"""The operation of the published API for each right. The official client is generated from its document."""
_UNPUBLISHED: Final = {"get pods/log": {"sinceTime": "str"}}
"""Parameters that servers take and the document lacks: https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/api/core/v1/types.go,
`PodLogOptions`."""
_FORMS: Final = {"bool": "true|false", "int": "[0-9]+", "str": ".*"}


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, reason: str, message: str = "", **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.message = message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> web.Response:
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.status}
        body |= {"reason": str(self), "message": self.message}
        return web.json_response(body, status=self.status, headers=self.headers)


class ApiServer:
    """An API server with one cluster."""

    def __init__(self) -> None:
        self.store = Store()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and query of each request."""
        self.faults: list[Refused | str] = []
        """The next answers: a refusal; `drop` closes the connection; `late` does so after the work is done."""
        self.fault_for = ""
        """Only requests whose method and path contain this text meet a fault."""
        self.rights = granted_rights()
        """Verbs and resources that the worker may use, such as `create secrets`."""
        self.used: set[str] = set()
        """Those that it used."""
        self.closes_watches = False
        self.cuts_logs: list[int] = []
        """Bytes after which the next connections for a log break."""
        self.ends_cut_logs = False
        """Connections for a log break as if the log had ended: a server that stops does so."""
        self.port = 0
        self._authority = trustme.CA()

    def kubeconfig(self, folder: Path, *, verify: bool = True, token: str = TOKEN) -> Path:
        """Write the kubeconfig of a worker, and return it."""
        authority = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(authority))
        tls = {"certificate-authority": str(authority)} if verify else {"insecure-skip-tls-verify": True}
        written = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "double",
            "clusters": [{"name": "double", "cluster": {"server": f"https://127.0.0.1:{self.port}", **tls}}],
            "users": [{"name": "worker", "user": {"token": token}}],
            "contexts": [{"name": "double", "context": {"cluster": "double", "user": "worker"}}],
        }
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(written))
        return path

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator["ApiServer"]:
        """Serve while the block runs."""
        application = web.Application(middlewares=[self._middleware])
        batch, core = "/apis/batch/v1/namespaces/{namespace}", "/api/v1/namespaces/{namespace}"
        application.add_routes(
            [
                web.post(f"{batch}/jobs", self._create_job),
                web.get(f"{batch}/jobs", self._list_jobs),
                web.get(f"{batch}/jobs/{{name}}", self._get_job),
                web.delete(f"{batch}/jobs/{{name}}", self._delete_job),
                web.post(f"{core}/secrets", self._create_secret),
                web.get(f"{core}/pods", self._list_pods),
                web.get(f"{core}/pods/{{name}}/log", self._read_log),
            ]
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert("127.0.0.1").configure_cert(context)
        runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=context)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            self.store.touch()
            await runner.cleanup()

    @web.middleware  # type: ignore[untyped-decorator]  # as far as mypy sees
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:  # noqa: ANN401
        self.requests.append((request.method, request.path, dict(request.query)))
        try:
            self._authorize(request)
            fault = self._fault(f"{request.method} {request.path}")
            if isinstance(fault, Refused):
                raise fault
            if fault is None:
                return await _answered(handler, request)
            if fault == "late":
                await _answered(handler, request)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        except Refused as refused:
            return refused.response()
        except ClientConnectionResetError:  # the worker has seen enough
            return web.Response()

    def _authorize(self, request: web.Request) -> None:
        if request.headers.get("Authorization", "").lower() != f"bearer {TOKEN}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        parts = request.path.split("/")
        resource = "pods/log" if parts[-1] == "log" else next(p for p in parts if p in {"jobs", "pods", "secrets"})
        right = f"{_verb(request, resource)} {resource}"
        if right not in self.used:
            self.used.add(right)
            self.store.touch()
        if right not in self.rights:
            raise Refused(403, "Forbidden", f'{resource} is forbidden: User "worker" cannot {right}')
        _check_query(right, request.query)

    def _fault(self, what: str) -> Refused | str | None:
        return self.faults.pop(0) if self.faults and self.fault_for in what else None

    async def _create_job(self, request: web.Request) -> web.Response:
        body = await _body(request, "Job")
        name = body["metadata"]["name"]
        if name in self.store.jobs:
            raise Refused(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        return web.json_response(self.store.add_job(body), status=201)

    async def _create_secret(self, request: web.Request) -> web.Response:
        body = await _body(request, "Secret")
        name = body["metadata"]["name"]
        if name in self.store.secrets:
            raise Refused(409, "AlreadyExists", f'secrets "{name}" already exists')
        self.store.secrets[name] = stamped(body, self.store.next_version())
        return web.json_response(self.store.secrets[name], status=201)

    async def _get_job(self, request: web.Request) -> web.Response:
        return web.json_response(self._job(request))

    async def _list_jobs(self, request: web.Request) -> web.Response:
        return web.json_response(self._list(self.store.jobs.values(), request.query))

    async def _delete_job(self, request: web.Request) -> web.Response:
        await _body(request, "DeleteOptions")
        job = self._job(request)
        self.store.delete(job["metadata"]["name"])
        return web.json_response(job)

    async def _list_pods(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") != "true":
            return web.json_response(self._list(self.store.pods.values(), request.query))
        if request.query.get("resourceVersion") == "0":
            raise Refused(410, "Expired", "too old resource version")
        response = web.StreamResponse()
        await response.prepare(request)
        known = int(request.query["resourceVersion"])
        if not self.closes_watches:
            await self.store.changed_after(known, float(request.query["timeoutSeconds"]))
            for pod in self._list(self.store.pods.values(), request.query)["items"]:
                if int(pod["metadata"]["resourceVersion"]) > known:
                    await response.write(json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n")
        await response.write_eof()
        return response

    async def _read_log(self, request: web.Request) -> web.StreamResponse:
        pod = self.store.pods.get(request.match_info["name"])
        if pod is None:
            raise Refused(404, "NotFound", "pods not found")
        log = self.store.logs[pod["metadata"]["name"]]
        if not log.has_begun:
            raise Refused(400, "BadRequest", "container is waiting to start: ContainerCreating")
        response = web.StreamResponse()
        await response.prepare(request)
        cut = self.cuts_logs.pop(0) if self.cuts_logs else None
        sent = 0
        async for line in log.lines(request.query.get("sinceTime", ""), follow=request.query.get("follow") == "true"):
            part = line if cut is None else line[: cut - sent]
            await response.write(part)
            sent += len(part)
            if cut is not None and sent >= cut and self.ends_cut_logs:
                break
            if cut is not None and sent >= cut:
                assert request.transport is not None
                request.transport.abort()
                return response
        await response.write_eof()
        return response

    def _job(self, request: web.Request) -> dict[str, Any]:
        job = self.store.jobs.get(request.match_info["name"])
        if job is None or job["metadata"]["namespace"] != request.match_info["namespace"]:
            raise Refused(404, "NotFound", f'jobs.batch "{request.match_info["name"]}" not found')
        return job

    def _list(self, objects: Any, query: MultiMapping[str]) -> dict[str, Any]:  # noqa: ANN401
        name, _, value = query.get("labelSelector", "").partition("=")
        items = [each for each in objects if not name or each["metadata"]["labels"].get(name) == value]
        return {"kind": "List", "metadata": {"resourceVersion": str(self.store.version)}, "items": items}


def granted_rights() -> set[str]:
    """Return the rights of a worker in the example for Kubernetes, such as `create jobs`."""
    documents = yaml.safe_load_all((_ROOT / "compose/kubernetes/containers.yaml").read_text())
    [role] = (document for document in documents if document["kind"] == "Role")
    return {f"{verb} {resource}" for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}


def _verb(request: web.Request, resource: str) -> str:
    """Return the verb of a request, as the authorization of Kubernetes has it."""
    if request.method != "GET":
        return {"POST": "create", "DELETE": "delete"}[request.method]
    if request.path.split("/")[-1] != resource:  # a named object
        return "get"
    return "watch" if request.query.get("watch") == "true" else "list"


@cache
def _parameters(right: str) -> Mapping[str, str]:
    """Return the parameters of a query in the published API, each with its type."""
    api, operation = _OPERATIONS[right]
    hints = get_type_hints(inspect.unwrap(getattr(api, operation)))
    written = inspect.getsource(getattr(api, f"_{operation}_serialize"))
    names = re.findall(r"_query_params\.append\(\('(\w+)', (\w+)\)\)", written)
    types = {
        name: next(kind for kind in (bool, int, str) if kind in get_args(hints[variable])) for name, variable in names
    }
    return {name: kind.__name__ for name, kind in types.items()} | _UNPUBLISHED.get(right, {})


def _check_query(right: str, query: MultiMapping[str]) -> None:
    """Refuse a query outside the published API. A server would ignore it, and answer something else."""
    parameters = _parameters(right)
    for name, value in query.items():
        if name not in parameters or re.fullmatch(_FORMS[parameters[name]], value) is None:
            raise Refused(400, "BadRequest", f"{right}: no parameter {name} with {value!r}")


async def _answered(handler: Any, request: web.Request) -> web.StreamResponse:  # noqa: ANN401
    response: web.StreamResponse = await handler(request)
    return response


async def _body(request: web.Request, kind: str) -> dict[str, Any]:
    """Return the body of a request, which must fit the published schema."""
    body: dict[str, Any] = json.loads(await request.read())
    schema = {"$ref": f"#/$defs/{_KINDS[kind]}", "$defs": _DOCUMENT["$defs"]}
    errors = [
        f"{error.json_path}: {error.message[:300]}"
        for error in jsonschema.Draft202012Validator(schema).iter_errors(body)
    ]
    if errors or body.get("kind") != kind:
        raise Refused(422, "Invalid", "; ".join(errors) or f"no {kind}")
    return body


__all__ = ["TOKEN", "ApiServer", "Refused", "now"]
