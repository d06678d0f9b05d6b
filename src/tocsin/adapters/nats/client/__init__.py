"""The NATS connection, and everything that does not need JetStream."""
