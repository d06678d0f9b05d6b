"""The ports on NATS JetStream, and an embedded server to develop and test against."""
