"""A worker of a queue without a durable: the durable is created before work starts.

tocsin worker tests.system.unknown_queue
"""

from tocsin import Worker

worker = Worker(queues=("nobody-asked-yet",))
