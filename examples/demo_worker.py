"""The functions behind demo.yaml: short sleeps instead of work, and failures that can be foretold.

tocsin dev --jobs examples/demo.yaml --worker examples/demo_worker.py:worker    # everything in one process
tocsin worker examples/demo_worker.py:worker                                    # an executor of its own
"""

import asyncio
import time
from typing import Any

from tocsin import Context, NonRetryableError, Worker

worker = Worker()


@worker.task("hanzo/llm-gateway/health-probe")
async def health_probe(context: Context) -> dict[str, Any]:
    """Ask every provider how it is."""
    await asyncio.sleep(0.1)
    context.logger.info("providers probed", healthy=3)
    return {"healthy": True}


@worker.task("hanzo/iam/credit-reconcile")
async def credit_reconcile(context: Context, failures: int = 0) -> dict[str, Any]:
    """Fail as often as the input says, then succeed: what a retry is for. The input's keys come as parameters."""
    await asyncio.sleep(0.2)
    if context.attempt <= failures:
        raise ConnectionError(f"the billing database refused attempt {context.attempt}")
    return {"reconciled": True, "attempts": context.attempt}


@worker.task("hanzo/cloud/cache-warm")
async def cache_warm(_: Context, cache_type: str, top_k: int) -> dict[str, Any]:
    """Refuse for good what no further attempt would mend."""
    if cache_type != "embeddings":
        raise NonRetryableError(f"there is no cache {cache_type!r}")
    await asyncio.sleep(0.2)
    return {"warmed": top_k}


@worker.task("hanzo/ml/benchmark-suite")
def benchmark_suite(_: Context, models: list[str], prompt_suite: str) -> dict[str, Any]:
    """A function that blocks: it runs in a thread."""
    time.sleep(0.3)
    return {"suite": prompt_suite, "tokens_per_second": {model: 100 + len(model) for model in models}}


@worker.task("hanzo/analytics/etl-extract")
async def etl_extract(context: Context) -> dict[str, Any]:
    """The first step of the pipeline: it works for the instant that it was due, not for the one at which it runs."""
    await asyncio.sleep(0.2)
    return {"rows": 1_000, "until": context.scheduled_time.isoformat()}


@worker.task("hanzo/analytics/etl-transform")
async def etl_transform(context: Context) -> dict[str, Any]:
    """The second step."""
    await asyncio.sleep(0.3)
    return {"rows": 990, "attempt": context.attempt}


@worker.task("hanzo/analytics/etl-load")
async def etl_load(context: Context) -> dict[str, Any]:
    """The third step: it fails whenever its input names a warehouse that cannot be reached."""
    await asyncio.sleep(0.2)
    if context.input.get("warehouse") == "unreachable":
        raise ConnectionError(f"no route to the warehouse (attempt {context.attempt})")
    return {"loaded": 990}


@worker.task("hanzo/analytics/etl-cleanup")
async def etl_cleanup(context: Context) -> dict[str, Any]:
    """The last step."""
    await asyncio.sleep(0.1)
    context.logger.info("staging area emptied", rows=990)
    return {}


@worker.task("hanzo/ml/drift-evaluation")
async def drift_evaluation(_: Context, models: list[str], threshold: float) -> dict[str, Any]:
    """Compare each model's drift, here the length of its name in thousandths, with the threshold."""
    await asyncio.sleep(0.3)
    drifts = {model: len(model) / 1_000 for model in models}
    return {model: {"drift": drift, "retrain": drift > threshold} for model, drift in drifts.items()}


@worker.task("demo/slow-report")
async def slow_report(_: Context, seconds: float = 5) -> dict[str, Any]:
    """Run for longer than the job's interval."""
    await asyncio.sleep(seconds)
    return {"slept": seconds}


if __name__ == "__main__":
    worker.run()
