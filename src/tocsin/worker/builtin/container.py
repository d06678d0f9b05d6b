"""The function `tocsin.container`: it runs the container of a definition as a Job of Kubernetes."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import JsonValue

from ...domain.definition import DefinitionProblem
from ...domain.definition.container_work import Container
from ...domain.definition.image import ImageError, covers, read_image, read_pattern
from ...domain.secret_reference import find_references
from ...settings import SettingsError
from ...settings.builtin import ContainerRules
from ..builtin_call import BuiltinCall, BuiltinFailure, not_allowed, wrong_input
from ..results import TIMED_OUT
from .arguments import identity, rendered_arguments, rendered_variables, result_of
from .cluster import MAX_REASON, Cluster, missing_configuration
from .container_job import NOT_ALLOWED, Order, read_template
from .container_run import ContainerRun
from .lines import Lines
from .pod_status import DEADLINE, End

OOM_KILLED: Final = "container_oom_killed"
EVICTED: Final = "container_evicted"
LOST: Final = "container_lost"
LOG_LOST: Final = "container_log_lost"
MAX_VALUES: Final = 262_144
"""Bytes of all arguments and variables together. Kubernetes keeps an object of a megabyte at most."""
_DEFAULT_TEMPLATE: Final = "default"
_DISRUPTIONS: Final = frozenset(
    {
        *("DeletionByPodGC", "DeletionByTaintManager", "Evicted", "EvictionByEvictionAPI", "NodeLost", "NodeShutdown"),
        *("PreemptionByScheduler", "Preempting", "Shutdown", "Terminated", "TerminationByKubelet"),
    }
)


class ContainerFunction:
    """Runs containers that the rules of a worker allow."""

    def __init__(
        self,
        rules: ContainerRules,
        environment: Mapping[str, str] = os.environ,
        connect: Callable[[ContainerRules], Cluster] = Cluster,
    ) -> None:
        """`environment`: the variables of this process."""
        for name, allowed in (("namespaces", rules.namespaces), ("images", rules.images)):
            if not allowed:
                reason = f"required for `--builtin container`, and not given: list the {name} that jobs may use"
                raise SettingsError(DefinitionProblem(reason, field=f"builtin.container.{name}", code="required"))
        if problem := missing_configuration(rules, environment):
            code = "required" if rules.kubeconfig is None else "file-not-found"
            raise SettingsError(DefinitionProblem(problem, field="builtin.container.kubeconfig", code=code))
        self._rules = rules
        self._templates = {name: read_template(name, path) for name, path in rules.templates.items()}
        self._images = tuple(map(read_pattern, rules.images))
        self._connect = connect

    async def __call__(self, call: BuiltinCall) -> JsonValue:
        """Run the container of a task, and return its result."""
        work = call.read(Container, "container")
        order = self._order(work, call)
        out = Lines(call.output, "info")
        async with self._connect(self._rules) as cluster:
            run = ContainerRun(cluster, order, call, start_within=self._rules.start_within, keep=self._rules.keep)
            end = await run.end(out)
        _check(end, work, order, (call.redact(end.message)[:MAX_REASON], out.shown(call.redact)))
        if work.result != "exit_code" and (run.log is None or run.log.problem is not None):
            reason = f": {run.log.problem}" if run.log is not None else ""
            message = f"the container succeeded, and its log, which has the result, cannot be read{reason}"
            raise BuiltinFailure(LOG_LOST, message, retryable=False)
        return result_of(work.result, out, call.redact)

    def _order(self, work: Container, call: BuiltinCall) -> Order:
        words = rendered_arguments((*work.command, *work.args), call)
        for written, word in zip((*work.command, *work.args), words, strict=True):
            if call.has_secret(word):
                raise wrong_input(
                    f"the argument {written!r} has a secret, which everyone who may read the Job would see; use `env`"
                )
        variables = rendered_variables(work.env, call)
        if sum(len(value.encode(errors="replace")) for value in (*words, *variables.values())) > MAX_VALUES:
            message = f"the arguments and variables have more than {MAX_VALUES:,} bytes; keep the data in a store"
            raise wrong_input(message)
        secrets = {name: value for name, value in variables.items() if _is_secret(work.env[name], value, call)}
        rules = self._rules
        if work.service_account is not None and work.service_account not in rules.service_accounts:
            raise BuiltinFailure(
                NOT_ALLOWED, not_allowed(f"the service account {work.service_account}", "container.service_accounts")
            )
        namespace = work.namespace or rules.namespaces[0]
        if namespace not in rules.namespaces:
            raise BuiltinFailure(NOT_ALLOWED, not_allowed(f"the namespace {namespace}", "container.namespaces"))
        return Order(
            work,
            self._image(work),
            namespace,
            words[: len(work.command)],
            words[len(work.command) :],
            {name: value for name, value in variables.items() if name not in secrets} | identity(call),
            secrets,
            self._template(work),
        )

    def _image(self, work: Container) -> str:
        try:
            image = read_image(work.image)
        except ImageError as error:
            raise wrong_input(str(error)) from None
        if not any(covers(pattern, image) for pattern in self._images):
            raise BuiltinFailure(NOT_ALLOWED, not_allowed(f"the image {image}", "container.images"))
        return str(image)

    def _template(self, work: Container) -> Mapping[str, Any]:
        if work.template is None:
            return self._templates.get(_DEFAULT_TEMPLATE, {})
        if work.template not in self._templates:
            raise BuiltinFailure(NOT_ALLOWED, not_allowed(f"the template {work.template}", "container.templates"))
        return self._templates[work.template]


def _is_secret(text: str, value: str, call: BuiltinCall) -> bool:
    return bool(find_references(text)) or call.redact(value) != value


def _check(end: End, work: Container, order: Order, texts: Sequence[str]) -> None:
    """Raise unless the container ended with exit code 0; `texts`: its output, without secrets."""
    if end.exit_code == 0:
        return
    said = "".join(f":\n{text}" for text in texts if text)
    details: dict[str, Any] = {"exit_code": end.exit_code, "reason": end.reason}
    if end.reason == DEADLINE:
        raise BuiltinFailure(TIMED_OUT, f"{order.image} did not end within the timeout of its attempt{said}", **details)
    if end.reason == "OOMKilled":
        raise BuiltinFailure(OOM_KILLED, f"{order.image} used more memory than its limit{said}", **details)
    if end.reason in _DISRUPTIONS:
        raise BuiltinFailure(EVICTED, f"{order.image} was ended by Kubernetes: {end.reason}{said}", **details)
    if end.exit_code is None:
        message = f"{order.image} ended without an exit code: {end.reason}{said}"
        raise BuiltinFailure(LOST, message, **details)
    codes = work.retryable_exit_codes
    raise BuiltinFailure(
        f"exit_code_{end.exit_code}",
        f"{order.image} ended with exit code {end.exit_code} ({end.reason}){said}",
        retryable=codes is None or end.exit_code in codes,
        **details,
    )
