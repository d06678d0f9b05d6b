"""The container of a job or a step, and its rules."""

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from .builtin_work import has_reference, size_problems, text_problems
from .command import LONGEST_GRACE_S, MAX_ARGUMENTS, ExitCode, ResultKind, program_problems, variable_problems
from .errors import DefinitionProblem, excess, show
from .fields import Name, Seconds, StoredModel, Text, matching, short_for
from .image import ImageError, read_image

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9\-]{0,61}[a-z0-9])?")
_QUANTITY: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?:m|k|Ki|[MGTPE]i?)?")


def _quantity(written: object) -> object:
    return str(written) if isinstance(written, int | float) and not isinstance(written, bool) else written


KubernetesName: TypeAlias = Annotated[
    Text,
    matching(_LABEL, "must be a name of Kubernetes: lower-case letters, digits and hyphens, at most 63 characters"),
]
Quantity: TypeAlias = Annotated[
    Text,
    matching(_QUANTITY, "must be a quantity of Kubernetes, such as 100m, 2 or 256Mi"),
    BeforeValidator(_quantity, json_schema_input_type=str | float),
]
Quantities: TypeAlias = dict[Literal["cpu", "memory", "ephemeral-storage"], Quantity]


class Resources(StoredModel):
    """The resources of a container: `cpu`, `memory` and `ephemeral-storage`, each as Kubernetes writes it."""

    requests: Quantities = {}
    """What the scheduler of Kubernetes reserves."""
    limits: Quantities = {}
    """What the container may use at most."""


class Container(StoredModel):
    """A container, which a worker with `--builtin container` runs in Kubernetes.

    A text is short for `image`.
    """

    image: Text
    """The image. It is no template. The worker must allow it."""
    command: tuple[Text, ...] = ()
    """The program and its first arguments, instead of the image's entrypoint; each after the program is a template."""
    args: tuple[Text, ...] = ()
    """The arguments, each a template that stays one argument. `$(NAME)` stays as it is."""
    env: dict[str, Text] = {}
    """Variables of the container, each value a template. Those with a secret become a Secret that the Job owns."""
    resources: Resources = Resources()
    """`requests` and `limits` of the container."""
    namespace: KubernetesName | None = None
    """The namespace of the Job; by default the first that the worker allows."""
    service_account: KubernetesName | None = None
    """The service account of the pod. The worker must allow it."""
    template: Name | None = None
    """The name of a pod template in the settings of the worker; by default `default`, if the worker has it."""
    result: ResultKind = "exit_code"
    """The result of the step: `exit_code`: `{"exit_code": 0}`. `last_line`: the last line of the log, as text. `json`: that line, read
    as JSON."""
    retryable_exit_codes: tuple[ExitCode, ...] | None = None
    """The exit codes after which another attempt may help; None: all."""
    grace: Annotated[Seconds, Field(le=LONGEST_GRACE_S)] = 10.0
    """Seconds between SIGTERM and SIGKILL if the container has to end, at most 30; rounded up."""


ContainerField: TypeAlias = Annotated[
    Container, BeforeValidator(short_for("image", str), json_schema_input_type=Container | str)
]


def container_problems(work: Container) -> Iterator[DefinitionProblem]:
    try:
        read_image(work.image)
    except ImageError as error:
        yield DefinitionProblem(str(error), field="container.image", value=show(work.image))
    yield from program_problems("container.command", work.command)
    number = len(work.command) + len(work.args)
    yield from excess(number, "arguments", MAX_ARGUMENTS, "container.args", "keep them in a store")
    for name, texts in (("command", work.command), ("args", work.args)):
        for text in texts:
            yield from _argument_problems(f"container.{name}", text)
    yield from variable_problems("container.env", work.env)
    yield from size_problems("container", work, instead="put it into the image")


def _argument_problems(field: str, text: str) -> Iterator[DefinitionProblem]:
    if has_reference(text):
        reason = "everyone who may read the Job can see it; refer to the secret in `env`"
        yield DefinitionProblem(reason, field=field, value=show(text), code="secret-reference-not-allowed")
        return
    yield from text_problems(field, text)
