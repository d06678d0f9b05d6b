"""Other schedulers, each in its usual durable configuration and in processes of its own.

Each peer is one file. Its client, worker and scheduler run under an interpreter that may differ from Tocsin's (`measurement`
starts it). So only `measurement` imports Tocsin here, and a peer imports its library only when it runs.

The libraries are the extra `peers`. In an environment of their own they are newer (the newest arq requires an older redis than
Tocsin); BullMQ is installed by npm:

    python -m venv PEERS && PEERS/bin/pip install apscheduler arq 'celery[redis]' dbos procrastinate taskiq taskiq-nats sqlalchemy
    npm install --prefix PEERS bullmq ioredis
    NODE_PATH=PEERS/node_modules python -m benchmarks W2 --peers --peers-python PEERS/bin/python

The comparisons:

W1  jobs that are all due at one full minute, by the peer's own scheduler: from that instant to each handler's start
W2  no-op tasks, enqueued separately: from the first to the last that the peer's own store calls done
W3  a single task at a random moment: from enqueueing it to its handler's start
"""

from typing import Final

PEERS: Final = ("apscheduler", "arq", "bullmq", "celery", "dbos", "procrastinate", "taskiq")
"""One module each."""
