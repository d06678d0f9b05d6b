"""A Flask application that runs its jobs in a background thread of its process.

    flask --app examples.flask_app run

The scheduler starts with the application, and stops when the server ends. `Tocsin.embedded("reports", data_dir="data")` keeps jobs and
executions in a folder instead of in memory. A server that forks, such as Gunicorn, calls `create_app` in each process: use `Tocsin("reports")`
there, so that the processes share the NATS of the settings.
"""

from datetime import date

from flask import Flask
from flask.typing import ResponseReturnValue

from tocsin import Context, Tocsin
from tocsin.client import RunFailed

app = Tocsin.in_memory("reports", timezone="Europe/Berlin")


@app.job(schedule="every day at 2am")
def report(context: Context, day: date | None = None) -> dict[str, object]:
    """Count the rows of a day."""
    return {"day": str(day or context.scheduled_time.date()), "rows": 3}


def create_app() -> Flask:
    """Make the web application, and start the scheduler."""
    web = Flask(__name__)
    scheduler = app.start()

    @web.post("/reports/<day>")
    def make_report(day: str) -> ResponseReturnValue:
        """Run the job for a day, and wait for its result."""
        try:
            run = scheduler.trigger("report", {"day": date.fromisoformat(day).isoformat()})
            return {"report": run.result(timeout=30)}
        except ValueError as error:
            return {"error": str(error)}, 400
        except RunFailed as failure:
            return {"error": str(failure)}, 500

    @web.get("/reports")
    def show_report() -> ResponseReturnValue:
        """Show how often the job ran, and when it runs next."""
        status = scheduler.get_status("report")
        return {"runs": status.run_count, "errors": status.error_count, "next": str(status.next_run)}

    return web
