"""Streams, durables, permissions: everything that an administrator does on a NATS server."""
