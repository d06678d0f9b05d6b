"""A web application that runs its jobs in its own process.

    uvicorn examples.fastapi_app:web

The scheduler starts and stops with the application. `Tocsin.embedded("reports", data_dir="data")` keeps jobs and executions in a folder instead of
in memory.
"""

from datetime import date

from fastapi import FastAPI, Request

from tocsin import Context, Tocsin

app = Tocsin.in_memory("reports", timezone="Europe/Berlin")


@app.job(schedule="every day at 2am")
async def report(context: Context, day: date | None = None) -> dict[str, object]:
    """Count the rows of a day."""
    await context.progress(0.5, "counting")
    return {"day": str(day or context.scheduled_time.date()), "rows": 3}


web = FastAPI(lifespan=app.lifespan)


@web.post("/reports/{day}")
async def make_report(day: date, request: Request) -> dict[str, object]:
    """Run the job for a day, and wait for its result."""
    run = await request.state.tocsin.client.trigger("report", {"day": day.isoformat()})
    return {"report": await run.result(timeout=30)}
