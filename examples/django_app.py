"""A Django application that runs its jobs in a background thread of its process.

    python -m examples.django_app

Of a project, `app.start()` belongs into `wsgi.py`: a server imports it in each of its processes, and management commands do not. `Tocsin.embedded("reports", data_dir="data")` keeps jobs
and executions in a folder instead of in memory. With several processes, use `Tocsin("reports")`, so that they share the NATS of the settings.
"""

from contextlib import suppress
from datetime import date
from wsgiref.simple_server import make_server

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from tocsin import Context, Tocsin
from tocsin.client import RunFailed

# settings.py
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], USE_TZ=True)

# jobs.py
app = Tocsin.in_memory("reports", timezone="Europe/Berlin")


@app.job(schedule="every day at 2am")
def report(context: Context, day: date | None = None) -> dict[str, object]:
    """Count the rows of a day."""
    return {"day": str(day or context.scheduled_time.date()), "rows": 3}


# views.py
@csrf_exempt
@require_POST
def make_report(_: HttpRequest, day: str) -> JsonResponse:
    """Run the job for a day, and wait for its result."""
    try:
        run = scheduler.trigger("report", {"day": date.fromisoformat(day).isoformat()})
        return JsonResponse({"report": run.result(timeout=30)})
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    except RunFailed as failure:
        return JsonResponse({"error": str(failure)}, status=500)


def show_report(_: HttpRequest) -> JsonResponse:
    """Show how often the job ran, and when it runs next."""
    status = scheduler.get_status("report")
    return JsonResponse({"runs": status.run_count, "errors": status.error_count, "next": str(status.next_run)})


# urls.py
urlpatterns = [path("reports/<str:day>", make_report), path("reports", show_report)]

# wsgi.py
application = get_wsgi_application()
scheduler = app.start()

if __name__ == "__main__":
    with make_server("127.0.0.1", 8000, application) as server, suppress(KeyboardInterrupt):  # Ctrl-C
        server.serve_forever()
