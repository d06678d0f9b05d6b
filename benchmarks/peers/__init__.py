"""What a user would pick instead of Tocsin, each in its usual durable configuration and in processes of its own.

A peer is one file. What runs of it, client and worker and scheduler, runs under an interpreter that may be another than
Tocsin's (`measuring` starts it), so nothing here but `measuring` imports Tocsin, and no peer imports its library before it runs.

The libraries are the extra `peers`. In an environment of their own they are newer (the newest arq takes an older redis than
Tocsin does); BullMQ comes by npm:

    python -m venv PEERS && PEERS/bin/pip install apscheduler arq 'celery[redis]' dbos procrastinate taskiq taskiq-nats sqlalchemy
    npm install --prefix PEERS bullmq ioredis
    NODE_PATH=PEERS/node_modules python -m benchmarks W2 --peers --peers-python PEERS/bin/python

What each is compared in:

W1  jobs that are all due at one full minute, by the scheduler that the peer brings: from that instant to each handler's start
W2  no-op tasks, handed over one by one: from the first to the last that its own store calls done
W3  a lone task at a random moment: from handing it over to its handler's start
"""

from typing import Final

PEERS: Final = ("apscheduler", "arq", "bullmq", "celery", "dbos", "procrastinate", "taskiq")
"""One module each."""
