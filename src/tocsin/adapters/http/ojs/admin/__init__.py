"""`/ojs/v1/admin`: what operators and dashboards read and do (ojs-admin-api)."""

from typing import Final

from . import jobs, queues, workers

ROUTERS: Final = (queues.router, jobs.router, workers.router)
