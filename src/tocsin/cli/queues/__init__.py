"""`tocsin queues`."""
