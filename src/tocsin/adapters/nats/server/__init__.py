"""nats-server processes for development and tests."""
