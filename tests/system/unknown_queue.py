"""A worker whose queue nobody has asked for yet: its durable has to be made before it can work.

tocsin worker tests.system.unknown_queue
"""

from tocsin import Worker

worker = Worker(queues=("nobody-asked-yet",))
