"""Jobs and inputs that are accepted fit the messages that follow from them."""

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from tests.system.running import Running, running
from tocsin.adapters.nats.admin.provision import LEAST_PAYLOAD
from tocsin.adapters.nats.admin.provision_errors import ProvisionError
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.domain.definition import MAX_STEPS, DefinitionError, JobDefinition
from tocsin.domain.events import Admitted, Dispatched, PoisonMessage
from tocsin.services.jobs import Registry


def registry_of(tocsin: Running) -> Registry:
    installation = tocsin.installation
    return Registry(installation.log, installation.projections, installation.clock)


def chain(steps: int, filling: int, **retry: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a retry policy
    """Return a job whose steps run one after the other, each with an input of its own."""
    names = [f"step-{n:04d}" for n in range(steps)]
    dag = [
        {"name": name, "function": "f", "input": {"own": "x" * filling}, "depends_on": names[n - 1 : n]}
        for n, name in enumerate(names)
    ]
    return {
        "name": "chain",
        "overlap_policy": "allow",
        "retry": {"max_attempts": 7, "jitter": 0.3, **retry},
        "dag": dag,
    }


async def test_largest_job_runs_with_the_largest_input(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path) as tocsin:
        definition = JobDefinition.model_validate(chain(MAX_STEPS, 100))
        await registry_of(tocsin).apply([definition])
        await registry_of(tocsin).trigger("chain", {"more": "y" * 245})

        async def dispatched() -> list[Dispatched]:
            return await tocsin.of_executions("chain", Dispatched)

        [task] = await tocsin.until(dispatched)
        assert task.input["more"] == "y" * 245
        [admitted] = await tocsin.of_executions("chain", Admitted)
        assert len(admitted.encode()) > 450_000
        assert await tocsin.facts("dead-letter.>", PoisonMessage) == []


async def test_job_that_would_not_fit_is_refused(nats_url: str, tmp_path: Path) -> None:
    """Each step repeats the retry policy of the job."""
    async with running(nats_url, tmp_path) as tocsin:
        names = [f"Error{n:03d}" for n in range(100)]
        definition = JobDefinition.model_validate(chain(MAX_STEPS, 10, non_retryable_errors=names))
        small = JobDefinition(name="small", function="f")
        for registering in (
            registry_of(tocsin).apply([small, definition]),
            registry_of(tocsin).define(definition),
        ):
            with pytest.raises(DefinitionError) as refused:
                await registering
            assert [(problem.code, problem.job) for problem in refused.value.problems] == [("too-large", "job `chain`")]
        assert await registry_of(tocsin).jobs() == ()


async def test_server_of_small_messages_is_refused(tmp_path: Path) -> None:
    server = EmbeddedServer(port=ANY_PORT, extra_config={"max_payload": LEAST_PAYLOAD - 1})
    async with server.running() as started:
        with pytest.raises(ProvisionError, match="`max_payload` to at least 1,000,000"):
            async with running(started.url, tmp_path):
                pass


async def test_dead_letter_fits_the_smallest_messages(tmp_path: Path) -> None:
    server = EmbeddedServer(port=ANY_PORT, extra_config={"max_payload": LEAST_PAYLOAD})
    async with server.running() as started, running(started.url, tmp_path) as tocsin:
        await registry_of(tocsin).apply([JobDefinition(name="small", function="f")])
        unreadable = b"[" + b"x" * 260_000
        prefix = tocsin.installation.settings.trigger_prefix
        await tocsin.installation.connection.client.publish(f"{prefix}.small", unreadable)

        async def dead_letters() -> list[PoisonMessage]:
            return [fact.message for fact in await tocsin.facts("dead-letter.>", PoisonMessage)]

        [letter] = await tocsin.until(dead_letters)
        assert (letter.is_cut, b64decode(letter.body)) == (False, unreadable)
