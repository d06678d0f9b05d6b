"""What a user would pick instead of Tocsin, each in its usual durable configuration and in processes of its own.

A peer is one file. What runs of it, client and worker and scheduler, runs under an interpreter that may be another than
Tocsin's (`measuring` starts it), so nothing here but `measuring` imports Tocsin, and no peer imports its library before it runs.
"""

from typing import Final

PEERS: Final = ("apscheduler", "arq", "bullmq", "celery", "dbos", "procrastinate", "taskiq")
"""One module each."""
