"""The functions of demo.yaml: short sleeps instead of work, and failures on purpose.

tocsin dev --jobs examples/demo.yaml --worker examples/demo_worker.py:worker    # everything in one process
tocsin worker examples/demo_worker.py:worker                                    # a separate worker
"""

import asyncio
import time
from typing import Any

from tocsin import Context, NonRetryableError, Worker

worker = Worker()


@worker.task("hanzo/llm-gateway/health-probe")
async def health_probe(context: Context) -> dict[str, Any]:
    """Check the health of every provider."""
    await asyncio.sleep(0.1)
    context.logger.info("providers probed", healthy=3)
    return {"healthy": True}


@worker.task("hanzo/iam/credit-reconcile")
async def credit_reconcile(context: Context, failures: int = 0) -> dict[str, Any]:
    """Fail as often as the input says, then succeed: the reason for retries.

    The keys of the input are the parameters.
    """
    await asyncio.sleep(0.2)
    if context.attempt <= failures:
        raise ConnectionError(f"the billing database refused attempt {context.attempt}")
    return {"reconciled": True, "attempts": context.attempt}


@worker.task("hanzo/cloud/cache-warm")
async def cache_warm(_: Context, cache_type: str, top_k: int) -> dict[str, Any]:
    """Raise an error that no further attempt would avoid."""
    if cache_type != "embeddings":
        raise NonRetryableError(f"there is no cache {cache_type!r}")
    await asyncio.sleep(0.2)
    return {"warmed": top_k}


@worker.task("hanzo/ml/benchmark-suite")
def benchmark_suite(_: Context, models: list[str], prompt_suite: str) -> dict[str, Any]:
    """Block: a function that is not a coroutine runs in a thread."""
    time.sleep(0.3)
    return {"suite": prompt_suite, "tokens_per_second": {model: 100 + len(model) for model in models}}


@worker.task("hanzo/analytics/etl-extract")
async def etl_extract(context: Context) -> dict[str, Any]:
    """Extract the rows of the scheduled day, not of the current day."""
    await asyncio.sleep(0.2)
    return {"rows": 1_000, "until": context.scheduled_time.isoformat()}


@worker.task("hanzo/analytics/etl-transform")
async def etl_transform(context: Context) -> dict[str, Any]:
    """Transform the rows of the first step."""
    await asyncio.sleep(0.3)
    return {"rows": 990, "attempt": context.attempt}


@worker.task("hanzo/analytics/etl-load")
async def etl_load(context: Context) -> dict[str, Any]:
    """Load the rows; fail if the input names a warehouse that is unreachable."""
    await asyncio.sleep(0.2)
    if context.input.get("warehouse") == "unreachable":
        raise ConnectionError(f"no route to the warehouse (attempt {context.attempt})")
    return {"loaded": 990}


@worker.task("hanzo/analytics/etl-cleanup")
async def etl_cleanup(context: Context) -> dict[str, Any]:
    """Remove the temporary rows."""
    await asyncio.sleep(0.1)
    context.logger.info("staging area emptied", rows=990)
    return {}


@worker.task("hanzo/ml/drift-evaluation")
async def drift_evaluation(_: Context, models: list[str], threshold: float) -> dict[str, Any]:
    """Compare each model's drift, here a thousandth of its name's length, with the threshold."""
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
